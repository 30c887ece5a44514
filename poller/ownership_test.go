package poller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestOwnership(t *testing.T) {
	t.Parallel()

	t.Run("a worker that has started knows that it is the owner", func(t *testing.T) {
		t.Parallel()
		for range 10 { // each alone in its database
			if b := start(t, pgtest.Database(t), nil); !b.Owner() {
				t.Fatal("it is not the owner")
			}
		}
	})

	t.Run("one worker fetches, and a standby takes over from one that stops", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		first := start(t, db, nil)
		second := start(t, db, nil)
		if first.Stats().Owner == second.Stats().Owner {
			t.Fatal("both or none is the owner")
		}
		insertMany(t, db.Pool, 10, 2)
		first.Wake()
		first.waitRows(20, "published_at IS NOT NULL")
		if n := len(second.seen()); n != 0 {
			t.Fatalf("the standby handled %d events", n)
		}
		first.wait("a sweep", func() bool { return !first.Stats().LastSweep.IsZero() })
		if s := second.Stats(); !s.LastSweep.IsZero() {
			t.Errorf("the standby has swept: %+v", s)
		}
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		if s := first.Stats(); !s.LastSweep.IsZero() {
			t.Errorf("what it knew as the owner outlives that: %+v", s)
		}
		insert(t, db.Pool, 1)
		second.waitCalls(1)
	})

	t.Run("a worker whose session is killed owns again and repeats nothing that it still holds", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 3, 1)
		release := make(chan struct{})
		b := start(t, db, func(context.Context, *event.Event) error { <-release; return nil })
		b.waitCalls(1)
		b.killOwner()
		b.wait("ownership to be lost", func() bool { return strings.Contains(b.log.String(), "owner_lost") })
		b.wait("ownership to be back", func() bool { return b.Stats().Owner })
		insert(t, db.Pool, 2)
		b.Wake()
		b.waitCalls(2) // the other aggregate goes on
		close(release)
		b.waitRows(4, "published_at IS NOT NULL")
		b.checkOrder(4)
	})

	t.Run("no handler starts while the owner's session has not answered for long", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := prepare(t, db, nil)
		s := &session{}
		s.answered.Store(int64(time.Since(epoch) - 2*lease))
		b.session.Store(s)
		b.lanes.offer(&row{id: 1, aggregate: aggregate{"thing", aggregateID(1)}, payload: []byte("{}")})
		b.startHandlers()
		b.handlers.end()
		if n := len(b.seen()); n != 0 {
			t.Errorf("handled %d events", n)
		}
	})

	t.Run("a connection that goes silent is given up although it looks open", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		direct, proxied := connectTo(t, db.URL, "owner"), connectTo(t, db.Through(t, proxy), "owner")
		var connects atomic.Int64
		b := prepare(t, db, nil, func(c *Config) {
			c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
				if connects.Add(1) == 1 {
					return proxied(ctx)
				}
				return direct(ctx)
			}
		})
		b.run()
		insert(t, db.Pool, 1)
		b.Wake()
		b.waitCalls(1)
		proxy.Blackhole()
		insert(t, db.Pool, 1)
		b.Wake()
		b.wait("ownership to be lost", func() bool { return strings.Contains(b.log.String(), "owner_lost") })
		b.waitCalls(2)
		b.checkOrder(2)
	})
}

func TestFaultOf(t *testing.T) {
	t.Parallel()
	const long, short = 31, 29 // seconds
	for _, tt := range []struct {
		name   string
		holder eventsdb.OwnerSessionRow
		want   string
	}{
		{"a worker that asks now and then", eventsdb.OwnerSessionRow{Worker: true, Ours: true, IdleS: short}, ""},
		{"a worker of another role", eventsdb.OwnerSessionRow{Worker: true, IdleS: short}, ""},
		{"a worker whose process is stopped", eventsdb.OwnerSessionRow{Worker: true, Ours: true, IdleS: long}, "owner_stalled_terminated"},
		{"such a one of another role", eventsdb.OwnerSessionRow{Worker: true, IdleS: long}, "owner_stalled_and_not_ours"},
		{"no worker", eventsdb.OwnerSessionRow{}, "lock_holder_is_not_a_worker"},
		{"no worker, and idle", eventsdb.OwnerSessionRow{IdleS: long}, "lock_holder_is_not_a_worker"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := faultOf(&tt.holder).name; got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	// hold takes the owner's lock in a session of an application.
	hold := func(t *testing.T, db *pgtest.DB, application string) *pgx.Conn {
		t.Helper()
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), "SET application_name = '"+application+"'"); err != nil {
			t.Fatal(err)
		}
		if got, err := eventsdb.New(conn).TryOwn(t.Context(), pgnames.OwnerLock); err != nil || !got.Owned {
			t.Fatalf("owned: %+v, error %v", got, err)
		}
		return conn
	}

	t.Run("a standby warns once of a lock that no worker holds, and takes over when it is free", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		holder := hold(t, db, "left in a pooler")
		b := start(t, db, nil)
		const event = `"lock_holder_is_not_a_worker"`
		b.wait("the warning", func() bool { return strings.Contains(b.log.String(), event) })
		for _, fact := range []string{`"level":"warn"`, fmt.Sprintf(`"pid":%d`, holder.PgConn().PID()), `"user":"`, `"application":"left in a pooler"`, `"client":"`} {
			if !strings.Contains(b.log.String(), fact) {
				t.Errorf("the log does not say %s:\n%s", fact, b.log)
			}
		}
		if err := holder.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.wait("ownership", func() bool { return b.Stats().Owner })
		if n := strings.Count(b.log.String(), event); n != 1 {
			t.Errorf("%d warnings:\n%s", n, b.log)
		}
	})

	t.Run("it warns again only of another session", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var log logBuffer
		o := &ownership{log: zerolog.New(&log)}
		inspect := func(warnings int) {
			t.Helper()
			if err := o.inspect(t.Context(), eventsdb.New(db.Pool)); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log.String(), "\n"); n != warnings {
				t.Fatalf("%d warnings, want %d:\n%s", n, warnings, &log)
			}
		}
		inspect(0)
		release := func(conn *pgx.Conn) {
			t.Helper()
			if free, err := eventsdb.New(conn).ReleaseOwnership(t.Context(), pgnames.OwnerLock); err != nil || !free {
				t.Fatalf("released: %v, error %v", free, err)
			}
		}
		first := hold(t, db, "psql")
		inspect(1)
		inspect(1)
		release(first)
		worker := hold(t, db, "outbox/owner")
		inspect(1)
		release(worker)
		hold(t, db, "psql")
		inspect(2)
	})
}

// killOwner ends the server's process of the owner's session.
func (b *bundle) killOwner() {
	b.t.Helper()
	b.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 'events.outbox'::regclass
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

func TestOutages(t *testing.T) {
	t.Parallel()

	t.Run("a crash of the database in the middle of a drain loses nothing", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Cluster(t)
		db := pgtest.DatabaseOn(t, server)
		const n = 5000
		insertMany(t, db.Pool, n/50, 50)
		b := start(t, db, func(context.Context, *event.Event) error { time.Sleep(100 * time.Microsecond); return nil })
		for i := range 3 {
			b.waitCalls((i + 1) * n / 5)
			if err := server.Restart(t.Context(), "immediate"); err != nil {
				t.Fatal(err)
			}
		}
		b.wait("all to be published", func() bool {
			var left int
			err := b.pool.QueryRow(context.Background(), "SELECT count(*) FROM events.outbox WHERE published_at IS NULL").Scan(&left)
			return err == nil && left == 0
		})
		seen := b.seen()
		slices.Sort(seen)
		if distinct := len(slices.Compact(seen)); distinct != n {
			t.Errorf("%d events were handled, want %d", distinct, n)
		}
	})

	t.Run("outcomes are kept while the database is away", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 5, 4)
		b := prepare(t, db, nil)
		lock := begin(t, db)
		if _, err := lock.Exec(t.Context(), "LOCK TABLE events.outbox IN EXCLUSIVE MODE"); err != nil { // reads go on
			t.Fatal(err)
		}
		b.run()
		b.waitCalls(20)
		b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
		b.wait("the failure to be noted", func() bool { return strings.Contains(b.log.String(), "settle_failing") })
		commit(t, lock)
		b.waitRows(20, "published_at IS NOT NULL")
		b.checkOrder(20)
		b.wait("the recovery to be noted", func() bool { return strings.Contains(b.log.String(), "settle_recovered") })
	})
}
