package listener

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
)

// Defaults of [Config].
const (
	DefaultConnectTimeout = 10 * time.Second
	DefaultProbeInterval  = 15 * time.Second
	DefaultProbeTimeout   = time.Second
)

// maxChannelBytes is the longest channel name that PostgreSQL keeps whole
// (NAMEDATALEN - 1). LISTEN truncates a longer one silently, and then nothing sent
// to it is recognised.
const maxChannelBytes = 63

// Config says what a [Listener] listens to and how it proves that it hears.
type Config struct {
	// Connect opens a new session for the listener alone, on an address that leads straight
	// to the primary server. Each call must open another session; one taken from a pool with
	// Acquire would keep its slot for ever. The listener closes it. Required.
	Connect func(ctx context.Context) (*pgx.Conn, error)

	// ConnectTimeout bounds one call of Connect, and after it the answer to LISTEN: a peer that
	// accepts and never speaks must not hang the listener. Defaults to 10 s.
	ConnectTimeout time.Duration

	// Handlers maps a channel to the function that is called for each of its notifications
	// and after every (re)LISTEN. Calls come one at a time, from one goroutine. A handler
	// must not block, since all channels wait for it; a panic in it is recovered and logged.
	// Channel names are case-sensitive and at most 63 bytes long. At least one is required.
	Handlers map[string]func()

	// ProbeChannel is the channel of the self-probe; not one of Handlers. Several listeners can
	// share it: each knows its own probes by their payload. Required.
	ProbeChannel string

	// SendProbe sends payload to ProbeChannel with pg_notify, through the connection pool and
	// not through the listener's session: the probe is to go the way that real notifications go.
	// It must return when its context ends. Required.
	SendProbe func(ctx context.Context, payload string) error

	// ProbeInterval is the time from an echo to the next probe. It bounds how long a silent
	// connection goes unnoticed. A probe is a NOTIFY, which takes a cluster-wide lock at commit,
	// so seconds are right and milliseconds are not. Defaults to 15 s.
	ProbeInterval time.Duration

	// ProbeTimeout is how long after a probe was sent its echo is waited for. Then the
	// listener is degraded and its connection is closed and opened anew. Defaults to 1 s.
	ProbeTimeout time.Duration

	// OnChange is called once for every change between healthy and degraded, in order, and
	// when the listener is healthy for the first time. It must not block. Optional.
	OnChange func(State)

	// Log receives one line for every change between healthy and degraded, and one more when
	// a reason shows itself during an outage that will not heal by itself.
	Log zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.ProbeInterval == 0 {
		c.ProbeInterval = DefaultProbeInterval
	}
	if c.ProbeTimeout == 0 {
		c.ProbeTimeout = DefaultProbeTimeout
	}
	if c.OnChange == nil {
		c.OnChange = func(State) {}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	reject := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.Connect == nil {
		reject("Connect is required")
	}
	if c.SendProbe == nil {
		reject("SendProbe is required")
	}
	if err := checkChannel(c.ProbeChannel); err != nil {
		reject("ProbeChannel: %w", err)
	}
	if len(c.Handlers) == 0 {
		reject("Handlers: at least one channel is required")
	}
	for channel, handler := range c.Handlers {
		if err := checkChannel(channel); err != nil {
			reject("Handlers[%q]: %w", channel, err)
		}
		if channel == c.ProbeChannel {
			reject("Handlers[%q]: is the ProbeChannel", channel)
		}
		if handler == nil {
			reject("Handlers[%q]: the function is nil", channel)
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"ConnectTimeout", c.ConnectTimeout},
		{"ProbeInterval", c.ProbeInterval},
		{"ProbeTimeout", c.ProbeTimeout},
	} {
		if d.value < 0 {
			reject("%s: %v is negative", d.field, d.value)
		}
	}
	return errors.Join(errs...)
}

func checkChannel(name string) error {
	if name == "" {
		return errors.New("a channel needs a name")
	}
	if len(name) > maxChannelBytes {
		return fmt.Errorf("%d bytes are longer than PostgreSQL's limit of %d", len(name), maxChannelBytes)
	}
	return nil
}
