package listener

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/internal/pgsession"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/temppg"
)

const (
	workChannel  = "work"
	probeChannel = "probe"

	// patience is how long a test waits for what must happen.
	patience = 30 * time.Second
	// never is an interval that does not end within a test.
	never = time.Hour
)

// bundle is a running listener with everything that it tells.
type bundle struct {
	*Listener
	t       *testing.T
	pool    *pgxpool.Pool
	wakes   chan struct{} // of workChannel; holds one, as in the poller
	changes chan State
	log     *logBuffer
	stop    func() error // ends Run and returns its error
}

// start runs a listener on the database at url, with probes through pool. It is stopped
// when the test ends.
func start(t *testing.T, pool *pgxpool.Pool, url string, adjust ...func(*Config)) *bundle {
	t.Helper()
	b := &bundle{t: t, pool: pool, wakes: make(chan struct{}, 1), changes: make(chan State, 1000), log: &logBuffer{}}
	cfg := Config{
		Connect: connectTo(t, url),
		Handlers: map[string]func(){workChannel: func() {
			select {
			case b.wakes <- struct{}{}:
			default:
			}
		}},
		ProbeChannel: probeChannel,
		SendProbe: func(ctx context.Context, payload string) error {
			_, err := pool.Exec(ctx, "SELECT pg_notify($1, $2)", probeChannel, payload)
			return err
		},
		ProbeInterval: 50 * time.Millisecond,
		OnChange:      func(s State) { b.changes <- s },
		Log:           zerolog.New(b.log),
	}
	for _, a := range adjust {
		a(&cfg)
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Listener = l

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	b.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("Run does not return")
		}
	})
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return b
}

func connectTo(t *testing.T, url string) func(context.Context) (*pgx.Conn, error) {
	t.Helper()
	base, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg := pgsession.Config(base, "listener")
	return func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg) }
}

// next returns the next change, which must be one to healthy or to degraded.
func (b *bundle) next(degraded bool) State {
	b.t.Helper()
	select {
	case s := <-b.changes:
		if s.Degraded != degraded {
			b.t.Fatalf("changed to %+v, want degraded: %v", s, degraded)
		}
		return s
	case <-time.After(patience):
		b.t.Fatalf("no change to degraded: %v; state %+v\nlog:\n%s", degraded, b.State(), b.log)
		return State{}
	}
}

func (b *bundle) nextHealthy() State  { b.t.Helper(); return b.next(false) }
func (b *bundle) nextDegraded() State { b.t.Helper(); return b.next(true) }

// eventually waits for a condition that announces itself in no other way.
func (b *bundle) eventually(what string, cond func() bool) {
	b.t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-deadline:
			b.t.Fatalf("never: %s; state %+v\nlog:\n%s", what, b.State(), b.log)
		case <-time.After(time.Millisecond):
		}
	}
}

func (b *bundle) wake() {
	b.t.Helper()
	receive(b.t, b.wakes, "a wake")
}

func (b *bundle) notify(channel string) {
	b.t.Helper()
	b.exec("SELECT pg_notify($1, '')", channel)
}

// kill ends the listener's server process.
func (b *bundle) kill() {
	b.t.Helper()
	var killed int
	err := b.pool.QueryRow(b.t.Context(), `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'outbox/listener'`).Scan(&killed)
	if err != nil || killed != 1 {
		b.t.Fatalf("killed %d sessions, error %v", killed, err)
	}
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) count(text string) int { return strings.Count(b.String(), text) }

func TestNotificationsWake(t *testing.T) {
	t.Parallel()

	t.Run("every LISTEN wakes, without a notification", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		start(t, db.Pool, db.URL).wake()
	})

	t.Run("a notification wakes the handler of its channel and no other", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		var others atomic.Int64
		b := start(t, db.Pool, db.URL, func(c *Config) { c.Handlers["other"] = func() { others.Add(1) } })
		b.nextHealthy()
		b.wake()
		before := others.Load()
		for range 3 {
			b.notify(workChannel)
			b.wake()
		}
		if got := others.Load(); got != before {
			t.Errorf("the other channel's handler was called %d times", got-before)
		}
		b.notify("other")
		b.eventually("the other channel's handler is called", func() bool { return others.Load() == before+1 })
	})

	t.Run("a notification for nobody harms nothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		// LISTEN to a channel that has no handler, as a pooler's server session may.
		b := start(t, db.Pool, db.URL, func(c *Config) {
			connect := c.Connect
			c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
				conn, err := connect(ctx)
				if err == nil {
					_, err = conn.Exec(ctx, "LISTEN somebody_elses")
				}
				return conn, err
			}
		})
		b.nextHealthy()
		b.wake()
		b.notify("somebody_elses")
		b.notify(workChannel)
		b.wake()
		if s := b.State(); s.Degraded || s.Reconnects != 0 {
			t.Errorf("state %+v", s)
		}
	})

	t.Run("a handler that panics is logged and called again", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		calls := make(chan struct{}, 10)
		b := start(t, db.Pool, db.URL, func(c *Config) {
			c.Handlers[workChannel] = func() {
				calls <- struct{}{}
				panic("boom")
			}
		})
		receive(t, calls, "call after LISTEN")
		b.notify(workChannel)
		receive(t, calls, "call for a notification")
		b.nextHealthy()
		b.eventually("both panics are logged", func() bool { return b.log.count("listener handler panicked") == 2 })
		if log := b.log.String(); !strings.Contains(log, "boom") || !strings.Contains(log, `"channel":"work"`) {
			t.Errorf("log: %s", log)
		}
	})
}

func TestRun(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	b := start(t, db.Pool, db.URL)
	if s := b.nextHealthy(); s.LastEcho.IsZero() || s.Reason != "" || !s.Connected || !b.Healthy() {
		t.Errorf("state %+v", s)
	}
	if err := b.Run(t.Context()); err == nil {
		t.Error("a second Run was accepted")
	}
	if err := b.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if s := b.State(); s.Healthy || s.Connected || s.Reason != "stopped" {
		t.Errorf("after Run: %+v", s)
	}
	if got := b.log.count("\n"); got != 1 {
		t.Errorf("%d log lines for a quiet life, want one:\n%s", got, b.log)
	}
}

func TestLostSession(t *testing.T) {
	t.Parallel()

	t.Run("what is sent while it is away is looked for when it is back", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		permits := make(chan struct{}, 1)
		permits <- struct{}{}
		b := start(t, db.Pool, db.URL, func(c *Config) {
			connect := c.Connect
			c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
				select {
				case <-permits:
					return connect(ctx)
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			c.ConnectTimeout = patience
		})
		b.nextHealthy()
		b.wake()

		b.kill()
		if s := b.nextDegraded(); s.Connected || !strings.Contains(s.Reason, "57P01") {
			t.Errorf("state %+v", s)
		}
		b.notify(workChannel) // nobody listens
		permits <- struct{}{}
		b.wake()
		if s := b.nextHealthy(); s.Reconnects != 1 {
			t.Errorf("state %+v", s)
		}
		if b.log.count("listener degraded") != 1 || b.log.count("down_for_ms") != 2 || b.log.count("\n") != 3 {
			t.Errorf("want one line a change:\n%s", b.log)
		}
	})

	t.Run("no session is left behind", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		b := start(t, db.Pool, db.URL)
		b.nextHealthy()
		for range 4 {
			b.kill()
			b.nextDegraded()
			b.nextHealthy()
		}
		if got := b.State().Reconnects; got != 4 {
			t.Errorf("%d reconnects", got)
		}
		sessions := func() (n int) {
			if err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'outbox/listener'`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		b.eventually("one session", func() bool { return sessions() == 1 })
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		b.eventually("no session after Run", func() bool { return sessions() == 0 })
		b.eventually("no pooled connection in use", func() bool { return db.Pool.Stat().AcquiredConns() == 0 })
	})

	t.Run("a cut connection is an outage until it is healed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		proxy := db.Proxy(t)
		b := start(t, db.Pool, db.Through(t, proxy))
		b.nextHealthy()
		b.wake()
		proxy.Cut()
		b.nextDegraded()
		proxy.Heal()
		b.wake()
		b.nextHealthy()
	})
}

func TestSilentPeer(t *testing.T) {
	t.Parallel()
	const connectTimeout = 500 * time.Millisecond

	t.Run("a connection that goes silent is noticed and replaced", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		proxy := db.Proxy(t)
		b := start(t, db.Pool, db.Through(t, proxy), func(c *Config) { c.ConnectTimeout = connectTimeout })
		b.nextHealthy()
		b.wake()
		proxy.Blackhole()
		if s := b.nextDegraded(); s.Connected || !strings.Contains(s.Reason, "went silent") {
			t.Errorf("state %+v", s)
		}
		b.eventually("reconnecting fails in its turn", func() bool { return strings.Contains(b.State().Reason, "connect") })
		proxy.Heal()
		b.wake()
		b.nextHealthy()
		if got := b.log.count("listener degraded"); got != 1 {
			t.Errorf("told %d times:\n%s", got, b.log)
		}
	})

	t.Run("a peer that never speaks does not hang the first connect", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		proxy := db.Proxy(t)
		proxy.Blackhole()
		b := start(t, db.Pool, db.Through(t, proxy), func(c *Config) { c.ConnectTimeout = connectTimeout })
		b.nextDegraded()
		proxy.Heal()
		b.nextHealthy()
	})

	t.Run("a peer that falls silent before LISTEN does not hang it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		proxy := db.Proxy(t)
		var once sync.Once
		b := start(t, db.Pool, db.Through(t, proxy), func(c *Config) {
			c.ConnectTimeout = connectTimeout
			connect := c.Connect
			c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
				conn, err := connect(ctx)
				once.Do(proxy.Blackhole)
				return conn, err
			}
		})
		if s := b.nextDegraded(); !strings.Contains(s.Reason, "LISTEN was not answered") {
			t.Errorf("state %+v", s)
		}
		proxy.Heal()
		b.nextHealthy()
	})
}

func TestSuspicion(t *testing.T) {
	t.Parallel()

	t.Run("an echo clears it, and nobody is told", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		probes := make(chan struct{})
		b := start(t, db.Pool, db.URL, func(c *Config) {
			c.ProbeInterval = never
			send := c.SendProbe
			c.SendProbe = func(ctx context.Context, payload string) error {
				select {
				case probes <- struct{}{}:
					return send(ctx, payload)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		receive(t, probes, "first probe")
		b.nextHealthy()

		b.Suspect("a poll was first")
		if s := b.State(); s.Healthy || s.Degraded || !s.Connected || s.Reason != "a poll was first" {
			t.Errorf("state %+v", s)
		}
		receive(t, probes, "probe for the suspicion")
		b.eventually("the echo clears the suspicion", b.Healthy)
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		if len(b.changes) != 0 || b.log.count("\n") != 1 {
			t.Errorf("%d changes told, log:\n%s", len(b.changes), b.log)
		}
	})

	t.Run("a missing echo confirms it, and the connection is replaced", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		proxy := db.Proxy(t)
		b := start(t, db.Pool, db.Through(t, proxy), func(c *Config) { c.ProbeInterval = never })
		b.nextHealthy()
		proxy.Blackhole()
		b.Suspect("a poll was first")
		if s := b.nextDegraded(); !strings.Contains(s.Reason, "went silent") {
			t.Errorf("state %+v", s)
		}
		proxy.Heal()
		if s := b.nextHealthy(); s.Reconnects != 1 {
			t.Errorf("state %+v", s)
		}
	})
}

func TestProbe(t *testing.T) {
	t.Parallel()

	t.Run("a probe that cannot be sent degrades and leaves the connection alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		var away atomic.Bool
		b := start(t, db.Pool, db.URL, func(c *Config) {
			send := c.SendProbe
			c.SendProbe = func(ctx context.Context, payload string) error {
				if away.Load() {
					return errors.New("pool away")
				}
				return send(ctx, payload)
			}
		})
		b.nextHealthy()
		away.Store(true)
		if s := b.nextDegraded(); !s.Connected || s.Reason != "probe could not be sent: pool away" {
			t.Errorf("state %+v", s)
		}
		away.Store(false)
		if s := b.nextHealthy(); s.Reconnects != 0 {
			t.Errorf("state %+v", s)
		}
	})

	t.Run("a session that hears no probe is degraded and says what to do", func(t *testing.T) {
		t.Parallel()
		// Another database is as deaf as a transaction-mode pooler, and as friendly.
		db, other := pgtest.EmptyDatabase(t), pgtest.EmptyDatabase(t)
		b := start(t, db.Pool, other.URL, func(c *Config) { c.ProbeTimeout = 100 * time.Millisecond })
		if s := b.nextDegraded(); !strings.Contains(s.Reason, "--listen-url") {
			t.Errorf("state %+v", s)
		}
		b.eventually("it goes on trying", func() bool { return b.State().Reconnects >= 2 })
		if got := b.log.count("\n"); got != 1 {
			t.Errorf("%d log lines:\n%s", got, b.log)
		}
	})

	t.Run("the probes of another listener are not taken for echoes", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		start(t, db.Pool, db.URL).nextHealthy()
		b := start(t, db.Pool, db.URL, func(c *Config) {
			c.ProbeTimeout = 200 * time.Millisecond
			c.SendProbe = func(ctx context.Context, payload string) error {
				_, forged, _ := strings.Cut(payload, ":")
				_, err := db.Pool.Exec(ctx, "SELECT pg_notify($1, $2), pg_notify($1, $3)", probeChannel, "somebody:"+forged, payload+"x")
				return err
			}
		})
		b.nextDegraded()
	})
}

func TestConnectThatCannotSucceed(t *testing.T) {
	t.Parallel()

	t.Run("a missing database is told once, tried on, and stops promptly", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		attempts := make(chan struct{}, 1000)
		b := start(t, db.Pool, strings.Replace(db.URL, db.Name, "no_such_database", 1), func(c *Config) {
			connect := c.Connect
			c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
				attempts <- struct{}{}
				return connect(ctx)
			}
		})
		for range 3 {
			receive(t, attempts, "attempt")
		}
		if s := b.nextDegraded(); !strings.Contains(s.Reason, "3D000") {
			t.Errorf("state %+v", s)
		}
		if err := b.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if got := b.log.count("\n"); got != 1 {
			t.Errorf("%d log lines:\n%s", got, b.log)
		}
	})

	t.Run("a server that comes back as a standby says what to do, and heals by promotion", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Cluster(t, func(o *temppg.Options) { o.Settings = map[string]string{"hot_standby": "on"} })
		pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		b := start(t, pool, server.URL("postgres"))
		b.nextHealthy()

		if err := server.Halt(t.Context(), temppg.Fast); err != nil {
			t.Fatal(err)
		}
		b.nextDegraded()
		if err := os.WriteFile(filepath.Join(server.DataDir(), "standby.signal"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := server.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.eventually("the standby is recognised", func() bool {
			s := b.State()
			return s.Degraded && strings.Contains(s.Reason, "25006") && strings.Contains(s.Reason, "--listen-url")
		})
		b.eventually("and told, since it lasts", func() bool { return b.log.count("25006") == 1 })
		pool.Reset() // what the failover broke
		b.exec("SELECT pg_promote()")
		b.nextHealthy()
		if got := b.log.count("listener degraded"); got != 2 {
			t.Errorf("told %d times:\n%s", got, b.log)
		}
	})
}
