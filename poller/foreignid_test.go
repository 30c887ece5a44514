package poller

import (
	"math"
	"slices"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// An id that somebody chose is not in the order of the sequence, but its event is no less an event.
func TestChosenIDsAreDelivered(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	b := prepare(t, db, nil, func(c *Config) { c.LaneCap, c.BatchSize, c.MaxBatchSize = 2, 3, 3 }) // more than what fits at once
	choose := func(from, to int64) {
		b.exec(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
			SELECT i, 'thing', $1, 'Happened', '{}' FROM generate_series($2::bigint, $3) i`, aggregateID(1), from, to)
	}
	choose(-9, 0)
	insertMany(t, db.Pool, 5, 2)
	b.run()
	b.waitRows(20, "published_at IS NOT NULL")
	choose(-19, -10)
	b.waitRows(30, "published_at IS NOT NULL")
	choose(math.MaxInt64-4, math.MaxInt64)
	b.Wake()
	b.waitRows(35, "published_at IS NOT NULL")
	seen := b.seen()
	slices.Sort(seen)
	if len(seen) != 35 || len(slices.Compact(seen)) != 35 {
		t.Errorf("%d events were handled, want 35, each once: %v", len(seen), b.seen())
	}
}
