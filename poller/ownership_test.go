package poller

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestOwnership(t *testing.T) {
	t.Parallel()

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
		if err := first.stop(); err != nil {
			t.Fatal(err)
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
		b.handlers.Wait()
		if n := len(b.seen()); n != 0 {
			t.Errorf("handled %d events", n)
		}
	})

	t.Run("a connection that goes silent is given up although it looks open", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		direct, proxied := connectTo(t, db.URL), connectTo(t, db.Through(t, proxy))
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
