package poller

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgsession"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/listener"
)

// hear has notifications wake the poller, as a worker does.
func (b *bundle) hear(db *pgtest.DB) {
	b.t.Helper()
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	heard := make(chan struct{}, 1)
	l, err := listener.New(listener.Config{
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			return pgx.ConnectConfig(ctx, pgsession.Config(config, "listener"))
		},
		Handlers:     map[string]func(){pgnames.WakeChannel: func() { signal(heard); b.Wake() }},
		ProbeChannel: pgnames.ProbeChannel,
		SendProbe: func(ctx context.Context, payload string) error {
			_, err := db.Pool.Exec(ctx, "SELECT pg_notify($1, $2)", pgnames.ProbeChannel, payload)
			return err
		},
		Log: zerolog.Nop(),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Run(ctx) // nil: ctx ends it
	}()
	b.t.Cleanup(func() {
		cancel()
		<-ended
	})
	<-heard
}

// waitGate blocks until the gate is in a state.
func (b *bundle) waitGate(s GateState) {
	b.t.Helper()
	b.wait("the gate", func() bool { return b.Stats().Gate == s })
}

// end ends the sessions with a role, and returns how many there were.
func (b *bundle) end(role string) (n int) {
	b.t.Helper()
	err := b.pool.QueryRow(context.Background(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = $1`, pgnames.Application+role).Scan(&n)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// gateHolders counts the sessions that have the gate closed, or wait for that.
func (b *bundle) gateHolders() (n int) {
	b.t.Helper()
	err := b.pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1
		AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, pgnames.GateLock).Scan(&n)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestGate(t *testing.T) {
	t.Parallel()

	t.Run("an idle worker has it closed, and an event is announced", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		b.hear(db)
		b.waitGate(GateClosed)
		for i := range 5 {
			insert(t, db.Pool, 1)
			b.waitCalls(i + 1)
		}
		if s := b.Stats().Gate; s != GateClosed {
			t.Errorf("a few events have moved it to %d", s)
		}
	})

	t.Run("it is given back with the ownership", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		b.waitGate(GateClosed)
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		b.wait("it to be free", func() bool { return b.gateHolders() == 0 }) // the server may take a moment to end the session
	})

	t.Run("it opens when events come fast, and closes when they do not", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := prepare(t, db, nil)
		b.paceLimits.openAt, b.paceLimits.openWithin = 3, time.Hour
		b.run()
		b.hear(db)
		for range 2 {
			b.waitGate(GateClosed)
			n := len(b.seen())
			b.wait("it to open", func() bool {
				insert(t, db.Pool, 1)
				n++
				return b.Stats().Gate == GateOpen
			})
			insert(t, db.Pool, 1) // in silence, or not
			b.waitCalls(n + 1)
			b.waitRows(0, "published_at IS NULL")
		}
	})

	t.Run("an open publisher holds up nobody else's events", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		slow := begin(t, db)
		insert(t, slow, 1)
		early := begin(t, db)
		insert(t, early, 2)
		b := start(t, db, nil)
		b.hear(db)
		b.waitGate(GateClosing)
		commit(t, early) // in silence: it began before the worker wanted to sleep
		b.waitCalls(1)
		for i := range 5 { // announced
			insert(t, db.Pool, 3)
			b.waitCalls(i + 2)
		}
		if s := b.Stats().Gate; s != GateClosing {
			t.Errorf("the gate is in state %d although a publisher is silent", s)
		}
		commit(t, slow)
		b.waitCalls(7)
		b.waitGate(GateClosed)
	})

	t.Run("when its session is ended, what is published in silence is found", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		b.hear(db)
		for i := range 5 {
			b.waitGate(GateClosed)
			b.wait("a session to end", func() bool { return b.end("gate") == 1 }) // it may not have noticed the last end yet
			insert(t, db.Pool, 1)
			b.waitCalls(i + 1)
		}
	})

	t.Run("without its session the worker looks by itself", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil, func(c *Config) {
			c.ConnectGate = func(context.Context) (*pgx.Conn, error) { return nil, context.DeadlineExceeded }
		})
		for i := range 5 {
			insert(t, db.Pool, 1)
			b.waitCalls(i + 1)
		}
		if s, log := b.Stats().Gate, b.log.String(); s != GateLost || strings.Count(log, "gate_lost") != 1 {
			t.Errorf("state %d, want lost and told once:\n%s", s, log)
		}
	})

	t.Run("a session that is dead without a word is doubted when the fallback finds an event", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		b := start(t, db, nil, func(c *Config) {
			c.ConnectGate = connectTo(t, db.Through(t, proxy), "gate")
			c.PollInterval, c.DegradedPollInterval = 50*time.Millisecond, 50*time.Millisecond
		})
		b.hear(db)
		b.waitGate(GateClosed)
		proxy.Blackhole()
		b.end("gate")
		b.wait("the lock to be free", func() bool { return b.gateHolders() == 0 })
		events := 0
		b.wait("it to be lost", func() bool { // the fetches that follow the last wake may find the first event, and say nothing about it
			insert(t, db.Pool, 1)
			events++
			b.waitCalls(events)
			return b.Stats().Gate == GateLost
		})
		proxy.Heal()
		b.waitGate(GateClosed)
	})

	t.Run("an owner whose session ends behind an open publisher leaves the ownership at once", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		slow := begin(t, db)
		insert(t, slow, 1)
		b := start(t, db, nil)
		b.waitGate(GateClosing)
		standby := start(t, db, nil)
		b.end("owner") // both: whoever is first gets it
		b.wait("an owner", func() bool { return b.Stats().Owner != standby.Stats().Owner })
		insert(t, db.Pool, 2)
		b.wait("the event", func() bool { return len(b.seen())+len(standby.seen()) == 1 })
		commit(t, slow)
		b.wait("the event of the open transaction", func() bool { return len(b.seen())+len(standby.seen()) == 2 })
	})

	t.Run("whoever waits for it leaves nothing in the server's log", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		slow := begin(t, db)
		insert(t, slow, 1)
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), "SET client_min_messages = log; SET lock_timeout = 0"); err != nil {
			t.Fatal(err)
		}
		var closed bool
		if err := conn.QueryRow(t.Context(), "SELECT events.outbox_close_gate()").Scan(&closed); err != nil || closed {
			t.Errorf("closed %v (%v), want false without an error", closed, err)
		}
		commit(t, slow)
		if err := conn.QueryRow(t.Context(), "SELECT events.outbox_close_gate()").Scan(&closed); err != nil || !closed {
			t.Errorf("closed %v (%v), want true", closed, err)
		}
	})
}
