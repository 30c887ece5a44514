package poller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// Ordering says what a failed event does to the later ones of its aggregate.
type Ordering int

const (
	// PerAggregate: a failed event holds back its aggregate until it is published or dead.
	PerAggregate Ordering = iota
	// None: later events overtake a failed one (the specification's plain query). Events that
	// do not fail are still handled in id order within their aggregate.
	None
)

// Defaults of [Config].
const (
	DefaultBatchSize            = 50
	DefaultMaxBatchSize         = 1000
	DefaultMaxBatchBytes        = 4 << 20
	DefaultConcurrency          = 64
	DefaultLaneCap              = 16
	DefaultPollInterval         = time.Second
	DefaultDegradedPollInterval = 250 * time.Millisecond
	DefaultShutdownGrace        = 30 * time.Second
)

// Config configures a [Poller]. Numbers that are zero take their default.
type Config struct {
	// Pool is where outcomes are written. It may lead through a pooler. Required.
	Pool *pgxpool.Pool
	// Connect opens a dedicated session on the direct address, for the ownership and the fetches. Required.
	Connect func(ctx context.Context) (*pgx.Conn, error)
	// ConnectGate opens another one there, for the gate. Required.
	ConnectGate func(ctx context.Context) (*pgx.Conn, error)
	// Deliver has one event handled and calls done once with what became of it, on its own goroutine. It may end that
	// goroutine. Required.
	Deliver func(ctx context.Context, d dispatch.Delivery, done func(dispatch.Outcome))
	// Namespace is that of the public ids (events.outbox_meta). Required.
	Namespace uuid.UUID
	// Sequence is the qualified name of the sequence of events.outbox.id. Required.
	Sequence string
	// Listening reports whether notifications are known to arrive; if not, it polls fast. Required.
	Listening func() bool
	// Suspect is told when a poll found an event that no notification had announced. Required.
	Suspect func(reason string)

	// Ordering defaults to PerAggregate.
	Ordering Ordering
	// BatchSize is how many rows a fetch asks for at first; MaxBatchSize where a backlog has grown it.
	BatchSize, MaxBatchSize int
	// MaxBatchBytes bounds the payloads of a page, in bytes; at least one row always fits. Four times
	// as much can be in flight.
	MaxBatchBytes int
	// Concurrency is how many events are handled at once.
	Concurrency int
	// LaneCap is how many fetched events of one aggregate wait in memory.
	LaneCap int
	// PollInterval and DegradedPollInterval are the fallback's two speeds.
	PollInterval, DegradedPollInterval time.Duration
	// DurableMarks has a batch of successes wait for the database's disk. Without it a crash of the server (not of a session)
	// repeats the deliveries of up to three times its wal_writer_delay, 0.6 s.
	DurableMarks bool
	// OnPublished joins the transaction that marks events as published, with their ids. If it fails the marks are tried again, and it
	// is called again: see outbox.Config. nil: nothing joins.
	OnPublished func(ctx context.Context, tx pgx.Tx, ids []int64) error
	// ShutdownGrace is how long handlers may go on after Run's context has ended; then their contexts are cancelled.
	ShutdownGrace time.Duration
	// Observer is told what the poller does.
	Observer Observer
	// Log takes changes of state and faults.
	Log zerolog.Logger
}

// withDefaults fills in what is zero, and returns everything that is wrong.
func (c Config) withDefaults() (Config, error) {
	c, err := c.WithDefaultNumbers()
	errs := []error{err}
	require := func(there bool, field string) {
		if !there {
			errs = append(errs, fmt.Errorf("%s: is required", field))
		}
	}
	require(c.Pool != nil, "Pool")
	require(c.Connect != nil, "Connect")
	require(c.ConnectGate != nil, "ConnectGate")
	require(c.Deliver != nil, "Deliver")
	require(c.Namespace != uuid.Nil, "Namespace")
	require(c.Sequence != "", "Sequence")
	require(c.Listening != nil, "Listening")
	require(c.Suspect != nil, "Suspect")
	return c, errors.Join(errs...)
}

// WithDefaultNumbers fills in the numbers and durations that are zero, and returns everything that is wrong with the
// others. It is for a caller that wants to know before it has a database.
func (c Config) WithDefaultNumbers() (Config, error) {
	var errs []error
	number := func(n *int, standard int, field string) {
		if *n < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", field, *n))
		} else if *n == 0 {
			*n = standard
		}
	}
	duration := func(d *time.Duration, standard time.Duration, field string) {
		if *d < 0 {
			errs = append(errs, fmt.Errorf("%s: %s is negative", field, *d))
		} else if *d == 0 {
			*d = standard
		}
	}
	number(&c.BatchSize, DefaultBatchSize, "BatchSize")
	number(&c.MaxBatchSize, max(DefaultMaxBatchSize, c.BatchSize), "MaxBatchSize")
	number(&c.MaxBatchBytes, DefaultMaxBatchBytes, "MaxBatchBytes")
	number(&c.Concurrency, DefaultConcurrency, "Concurrency")
	number(&c.LaneCap, DefaultLaneCap, "LaneCap")
	duration(&c.PollInterval, DefaultPollInterval, "PollInterval")
	duration(&c.DegradedPollInterval, min(DefaultDegradedPollInterval, c.PollInterval), "DegradedPollInterval")
	duration(&c.ShutdownGrace, DefaultShutdownGrace, "ShutdownGrace")
	if c.MaxBatchSize < c.BatchSize {
		errs = append(errs, fmt.Errorf("MaxBatchSize: %d is less than BatchSize, %d", c.MaxBatchSize, c.BatchSize))
	}
	if c.DegradedPollInterval > c.PollInterval {
		errs = append(errs, fmt.Errorf("DegradedPollInterval: %s is longer than PollInterval, %s", c.DegradedPollInterval, c.PollInterval))
	}
	if c.Ordering != PerAggregate && c.Ordering != None {
		errs = append(errs, fmt.Errorf("Ordering: %d is neither PerAggregate nor None", c.Ordering))
	}
	return c, errors.Join(errs...)
}

func (c Config) limits() limits {
	return limits{
		concurrency: c.Concurrency,
		laneCap:     c.LaneCap,
		rows:        2*c.MaxBatchSize + 2*c.Concurrency,
		bytes:       4*c.MaxBatchBytes + 2*c.MaxBatchSize*rowOverhead,
		holdBack:    c.Ordering == PerAggregate,
	}
}
