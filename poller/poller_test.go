package poller

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestDelivery(t *testing.T) {
	t.Parallel()

	t.Run("events that are there before the worker starts are delivered and marked", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 3, 2)
		b := start(t, db, nil)
		b.waitCalls(6)
		b.waitRows(6, "published_at IS NOT NULL")
	})

	t.Run("an event committed later is delivered on its wake", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		for i := range 5 {
			id := insert(t, db.Pool, 1)
			b.Wake()
			b.waitCalls(i + 1)
			if got := b.seen()[i]; got != id {
				t.Fatalf("handled event %d, want %d", got, id)
			}
		}
	})

	t.Run("a handler that ends its goroutine has failed, and the others go on", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 3, 1)
		var exits atomic.Int32
		b := start(t, db, func(context.Context, *event.Event) error {
			if exits.Add(1) <= 2 {
				runtime.Goexit()
			}
			return nil
		}, func(c *Config) { c.Concurrency = 1 })
		b.waitRows(3, "published_at IS NOT NULL")
		if n := len(b.seen()); n != 5 {
			t.Errorf("%d calls, want 5", n)
		}
	})

	t.Run("a redriven dead letter comes before what is published after that", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var calls atomic.Int32
		b := start(t, db, func(context.Context, *event.Event) error {
			if calls.Add(1) == 1 {
				return dispatch.Permanent(errHandler)
			}
			return nil
		})
		dead := insert(t, db.Pool, 1)
		b.Wake()
		b.waitRows(1, "next_retry_at = 'infinity'")
		for range 2 { // until the worker has had a second look at what is in retry
			last := b.Stats().LastSweep
			b.wait("a sweep", func() bool { return b.Stats().LastSweep != last })
		}
		for i := range 3 {
			insert(t, db.Pool, 2)
			b.Wake()
			b.waitRows(i+1, "published_at IS NOT NULL")
		}
		b.exec("UPDATE events.outbox SET next_retry_at = now() WHERE id = $1", dead)
		next := insert(t, db.Pool, 1)
		b.Wake()
		b.waitRows(5, "published_at IS NOT NULL")
		if got := b.seen()[4:]; !slices.Equal(got, []int64{dead, next}) {
			t.Errorf("handled %v, want %v", got, []int64{dead, next})
		}
	})

	t.Run("a lower id that is committed after a higher one is delivered on its own wake", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		for round := range 5 {
			slow := begin(t, db)
			low := insert(t, slow, 1)
			high := insert(t, db.Pool, 2)
			b.Wake()
			b.waitCalls(2*round + 1)
			b.waitRows(2*round+1, "published_at IS NOT NULL")
			b.Wake() // fetches that see nothing must not let the watermark pass the open transaction
			commit(t, slow)
			b.Wake()
			b.waitCalls(2*round + 2)
			if got := b.seen()[2*round:]; !slices.Equal(got, []int64{high, low}) {
				t.Fatalf("handled %v, want %v", got, []int64{high, low})
			}
		}
		if n := b.Stats().Rescues; n != 0 {
			t.Errorf("%d events were left to the sweep", n)
		}
	})

	t.Run("a transaction that commits more late rows than fit a page loses none", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil, func(c *Config) { c.BatchSize, c.MaxBatchSize = 10, 20 })
		slow := begin(t, db)
		for range 70 {
			insert(t, slow, 1)
		}
		insert(t, db.Pool, 2)
		b.Wake()
		b.waitCalls(1)
		commit(t, slow)
		b.Wake()
		b.waitCalls(71)
		b.waitRows(71, "published_at IS NOT NULL")
		if ids := b.seen(); len(ids) != 71 || !slices.IsSorted(ids[1:]) {
			t.Errorf("handled %v", ids)
		}
	})

	t.Run("a row that cannot be decoded is dead and its page is not", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insert(t, db.Pool, 1)
		db.Pool.Exec(t.Context(), "UPDATE events.outbox SET occurred_at = 'infinity'")
		insert(t, db.Pool, 1)
		insert(t, db.Pool, 2)
		b := start(t, db, nil)
		b.waitRows(2, "published_at IS NOT NULL")
		b.waitRows(1, "next_retry_at = 'infinity' AND retry_count >= 10 AND last_error LIKE '%occurred_at%'")
		if got := b.seen(); len(got) != 2 {
			t.Errorf("handled %v, want the two others", got)
		}
	})

	t.Run("a payload that is not an envelope is delivered whole with version 0", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var got atomic.Pointer[event.Event]
		b := start(t, db, func(_ context.Context, e *event.Event) error { got.Store(e); return nil })
		b.exec(`INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('thing', gen_random_uuid(), 'Foreign', '[1, 12345678901234567890.10]')`)
		b.Wake()
		b.waitRows(1, "published_at IS NOT NULL")
		if e := got.Load(); e.Version != 0 || string(e.Data) != "[1, 12345678901234567890.10]" {
			t.Errorf("delivered version %d, data %s", e.Version, e.Data)
		}
		if n := b.Stats().NotEnvelopes; n != 1 {
			t.Errorf("counted %d payloads that are not envelopes", n)
		}
	})
}

// errHandler is what failing handlers return.
var errHandler = errors.New("no")

func TestFailures(t *testing.T) {
	t.Parallel()

	t.Run("a failed event is retried when it is due, and holds back its aggregate alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		first := insert(t, db.Pool, 1)
		second := insert(t, db.Pool, 1)
		other := insert(t, db.Pool, 2)
		b := start(t, db, func(_ context.Context, e *event.Event) error {
			if e.ID == first && e.Attempt < 3 {
				return errHandler
			}
			return nil
		})
		b.waitRows(3, "published_at IS NOT NULL")
		ids := slices.DeleteFunc(b.seen(), func(id int64) bool { return id == other })
		if want := []int64{first, first, first, second}; !slices.Equal(ids, want) {
			t.Errorf("aggregate 1 was handled as %v, want %v", ids, want)
		}
		b.waitRows(1, "retry_count = 2 AND last_error = 'test: no'")
	})

	t.Run("an event that is held back stays so across a restart", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		first := insert(t, db.Pool, 1)
		second := insert(t, db.Pool, 1)
		b := start(t, db, func(context.Context, *event.Event) error { return dispatch.RetryAfter(never, errHandler) })
		b.waitRows(1, "retry_count = 1")
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		b = start(t, db, nil)
		other := insert(t, db.Pool, 2)
		b.Wake()
		b.waitRows(1, "published_at IS NOT NULL")
		if got := b.seen(); !slices.Equal(got, []int64{other}) {
			t.Fatalf("handled %v, want only %d", got, other)
		}
		// As an operator would, or another worker: the sweep finds it.
		b.exec("UPDATE events.outbox SET next_retry_at = now() WHERE retry_count = 1")
		b.Wake() // a fetch confirms the watermark; without wakes the fallback's does
		b.waitRows(3, "published_at IS NOT NULL")
		if got := b.seen(); !slices.Equal(got, []int64{other, first, second}) {
			t.Errorf("handled %v", got)
		}
		if n := b.Stats().Rescues; n != 0 {
			t.Errorf("counted %d rescues", n)
		}
	})

	t.Run("a dead letter blocks nothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		first := insert(t, db.Pool, 1)
		insertMany(t, db.Pool, 40, 1) // more than a lane holds
		b := start(t, db, func(_ context.Context, e *event.Event) error {
			if e.ID == first {
				return dispatch.Permanent(errHandler)
			}
			return nil
		})
		b.waitRows(40, "published_at IS NOT NULL")
		b.waitRows(1, "next_retry_at = 'infinity' AND retry_count = 10")
		if ids := b.seen(); !slices.IsSorted(ids) {
			t.Errorf("handled out of order: %v", ids)
		}
	})

	t.Run("the tenth failure is dead, and what it held back follows", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		first := insert(t, db.Pool, 1)
		insertMany(t, db.Pool, 40, 1)
		b := start(t, db, func(_ context.Context, e *event.Event) error {
			if e.ID == first {
				return dispatch.RetryAfter(time.Microsecond, errHandler)
			}
			return nil
		})
		b.waitRows(40, "published_at IS NOT NULL")
		ids := b.seen()
		if len(ids) != 50 || !slices.IsSorted(ids) {
			t.Errorf("%d calls, want ten of the first and then 40 in order: %v", len(ids), ids)
		}
	})

	t.Run("redriven dead letters are delivered in id order", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 60, 2)
		b := prepare(t, db, nil)
		b.exec("UPDATE events.outbox SET retry_count = 10, next_retry_at = 'infinity'")
		b.run()
		b.exec("UPDATE events.outbox SET next_retry_at = now()")
		b.waitRows(120, "published_at IS NOT NULL")
		b.checkOrder(120)
	})

	t.Run("events overtake a failed one where ordering is off", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		first := insert(t, db.Pool, 1)
		insertMany(t, db.Pool, 40, 1)
		b := start(t, db, func(_ context.Context, e *event.Event) error {
			if e.ID == first {
				return dispatch.RetryAfter(never, errHandler)
			}
			return nil
		}, func(c *Config) { c.Ordering = None })
		b.waitRows(40, "published_at IS NOT NULL")
		insert(t, db.Pool, 1)
		b.Wake()
		b.waitRows(41, "published_at IS NOT NULL")
	})

	t.Run("an outcome that the database refuses becomes a retry, alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 1, 20)
		b := prepare(t, db, nil)
		b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
		b.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON events.outbox FOR EACH ROW WHEN (OLD.id = 7 AND NEW.published_at IS NOT NULL) EXECUTE FUNCTION refuse()`)
		b.run()
		b.waitRows(19, "published_at IS NOT NULL")
		b.waitRows(1, "id = 7 AND retry_count = 1 AND last_error LIKE '%not this one%' AND next_retry_at > now()")
	})

	t.Run("an event that somebody else marked meanwhile is left alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		id := insert(t, db.Pool, 1)
		next := insert(t, db.Pool, 1)
		b := prepare(t, db, nil)
		b.handle = func(_ context.Context, e *event.Event) error {
			if e.ID != id {
				return nil
			}
			b.exec("UPDATE events.outbox SET published_at = '2000-01-01' WHERE id = $1", id)
			return errHandler
		}
		b.run()
		b.waitRows(1, "published_at > now() - interval '1 hour'")
		b.waitRows(1, "published_at = '2000-01-01' AND retry_count = 0")
		if got := b.seen(); !slices.Equal(got, []int64{id, next}) {
			t.Errorf("handled %v", got)
		}
	})
}

// checkOrder fails unless each aggregate's events were handled in id order, each once, n in all.
func (b *bundle) checkOrder(n int) {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(), "SELECT id, aggregate_id::text FROM events.outbox")
	if err != nil {
		b.t.Fatal(err)
	}
	aggregates := make(map[int64]string)
	for rows.Next() {
		var id int64
		var aggregate string
		if err := rows.Scan(&id, &aggregate); err != nil {
			b.t.Fatal(err)
		}
		aggregates[id] = aggregate
	}
	last := make(map[string]int64)
	ids := b.seen()
	if len(ids) != n {
		b.t.Errorf("%d calls, want %d", len(ids), n)
	}
	for _, id := range ids {
		aggregate := aggregates[id]
		if id <= last[aggregate] {
			b.t.Fatalf("event %d of %s was handled after %d", id, aggregate, last[aggregate])
		}
		last[aggregate] = id
	}
}

func TestLanesAndCapacity(t *testing.T) {
	t.Parallel()

	t.Run("an aggregate with a long backlog is handled in order and costs the others nothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 3000, 1)
		insertMany(t, db.Pool, 10, 50)
		b := start(t, db, nil, func(c *Config) { c.MaxBatchSize = 100 })
		b.waitRows(3500, "published_at IS NOT NULL")
		b.checkOrder(3500)
	})

	t.Run("slow handlers of one aggregate delay no other", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 500, 1)
		release := make(chan struct{})
		b := start(t, db, func(_ context.Context, e *event.Event) error {
			if e.AggregateID == aggregateID(1) {
				<-release
			}
			return nil
		}, func(c *Config) { c.BatchSize, c.MaxBatchSize, c.Concurrency = 5, 10, 4 })
		b.waitCalls(1)
		for i := range 30 {
			insert(t, db.Pool, 2+i%3)
			b.Wake()
		}
		b.waitRows(30, "published_at IS NOT NULL")
		close(release)
		b.waitRows(530, "published_at IS NOT NULL")
		b.checkOrder(530)
	})

	t.Run("a page of large payloads is cut by its bytes and loses nothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := prepare(t, db, nil, func(c *Config) { c.MaxBatchBytes = 100_000 })
		b.exec(`INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'thing', ('00000000-0000-0000-0000-' || lpad(to_hex(n % 7), 12, '0'))::uuid, 'Large',
			       jsonb_build_object('version', 1, 'data', (SELECT string_agg(md5((n * 1000 + i)::text), '') FROM generate_series(1, 1000) i))
			FROM generate_series(1, 60) n`)
		b.run()
		b.waitRows(60, "published_at IS NOT NULL")
		b.checkOrder(60)
	})

	t.Run("the smallest limits work", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 20, 3)
		b := start(t, db, nil, func(c *Config) {
			c.BatchSize, c.MaxBatchSize, c.MaxBatchBytes, c.Concurrency, c.LaneCap = 1, 1, 1, 1, 1
		})
		b.waitRows(60, "published_at IS NOT NULL")
		b.checkOrder(60)
	})
}

func TestForeignIds(t *testing.T) {
	t.Parallel()

	t.Run("an id that the sequence never gave out does not carry the cursor away", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		b.exec(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
			VALUES (1000000, 'thing', gen_random_uuid(), 'Imported', '{}')`)
		b.Wake()
		b.waitCalls(1)
		for i := range 3 {
			insert(t, db.Pool, 1)
			b.Wake()
			b.waitCalls(2 + i)
		}
		if n := b.Stats().Rescues; n != 0 {
			t.Errorf("%d events were left to the sweep", n)
		}
	})

	t.Run("setval backwards delays nothing but what it hides", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		insertMany(t, db.Pool, 1, 100)
		b.Wake()
		b.waitRows(100, "published_at IS NOT NULL")
		b.exec("DELETE FROM events.outbox")
		b.exec("SELECT setval('events.outbox_id_seq', 10)")
		b.Wake()
		for i := range 3 {
			insert(t, db.Pool, 1)
			b.Wake()
			b.waitCalls(101 + i)
		}
	})

	t.Run("an id drawn ahead of its transaction is found by the sweep and counted", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		b := start(t, db, nil)
		var drawn int64
		if err := db.Pool.QueryRow(t.Context(), "SELECT nextval('events.outbox_id_seq')").Scan(&drawn); err != nil {
			t.Fatal(err)
		}
		for i := range 5 { // the watermark passes the drawn id
			insert(t, db.Pool, 1)
			b.Wake()
			b.waitCalls(i + 1)
		}
		b.exec(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
			VALUES ($1, 'thing', gen_random_uuid(), 'Drawn', '{}')`, drawn)
		b.waitCalls(6)
		if got := b.seen()[5]; got != drawn {
			t.Errorf("handled %d, want %d", got, drawn)
		}
		if n := b.Stats().Rescues; n != 1 {
			t.Errorf("counted %d rescues, want 1", n)
		}
		if !strings.Contains(b.log.String(), "events_rescued") {
			t.Errorf("no line for the rescue:\n%s", b.log)
		}
	})
}

func TestFallbackPoll(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	b := start(t, db, nil, func(c *Config) { c.PollInterval, c.DegradedPollInterval = 30*time.Millisecond, 10*time.Millisecond })
	for i := range 1000 { // one that is found while the worker is catching up says nothing
		insert(t, db.Pool, 1)
		b.waitCalls(i + 1)
		if b.Stats().Unannounced {
			break
		}
	}
	b.wait("unannounced events to be noted", func() bool { return b.Stats().Unannounced })
	if b.suspect.Load() == 0 {
		t.Error("the listener was not suspected")
	}
}
