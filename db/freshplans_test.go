package db_test

import (
	"testing"

	"github.com/seed-9a365b49/outbox/db"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestFreshPlans(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	conn := d.Connect(t)
	exec(t, conn, "ALTER TABLE events.outbox SET (autovacuum_enabled = off)", "ANALYZE events.outbox")
	insert := func(n int) (last int64) {
		return value[int64](t, conn, `WITH new AS (
			INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', gen_random_uuid(), 'Placed', '{}' FROM generate_series(1, $1::int) RETURNING id
		) SELECT max(id) FROM new`, n)
	}
	scans := func() int64 {
		return value[int64](t, conn, "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'events.outbox'::regclass")
	}
	prepared, fresh := eventsdb.New(conn), eventsdb.New(db.FreshPlans(conn))

	// More often than PostgreSQL takes to decide for a plan that it keeps, on a table of one page.
	for range 10 {
		for _, q := range []*eventsdb.Queries{prepared, fresh} {
			if err := q.MarkPublishedBatch(t.Context(), eventsdb.MarkPublishedBatchParams{Ids: []int64{insert(1)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := insert(20_000)

	exec(t, conn, "BEGIN")
	defer exec(t, conn, "ROLLBACK")
	for _, c := range []struct {
		name  string
		q     *eventsdb.Queries
		scans bool
	}{
		{"a prepared statement keeps reading the whole table", prepared, true},
		{"a fresh plan reads the index", fresh, false},
	} {
		before := scans()
		if err := c.q.MarkPublishedBatch(t.Context(), eventsdb.MarkPublishedBatchParams{Ids: []int64{last, last - 1}}); err != nil {
			t.Fatal(err)
		}
		if scanned := scans() > before; scanned != c.scans {
			t.Errorf("%s: read the whole table: %t", c.name, scanned)
		}
	}
	if n := value[int](t, conn, "SELECT count(*) FROM events.outbox WHERE id >= $1 AND published_at IS NOT NULL", last-1); n != 2 {
		t.Errorf("%d events are marked, want 2", n)
	}
}
