package poller

import (
	"math"
	"slices"
	"strings"
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

// What only the sweep finds is found whatever the table holds, and wherever the sequence is.
func TestSweepReachesWhatNothingElseDoes(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"a dead letter above the sequence": `INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at)
			VALUES (1001, 'thing', gen_random_uuid(), 'Happened', '{}', 10, 'infinity')`,
		"a retry above the sequence": `INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at)
			VALUES (1001, 'thing', gen_random_uuid(), 'Happened', '{}', 1, now() + interval '1 day')`,
		"a sequence near its end": `SELECT setval('events.outbox_id_seq', 9223372036854775000)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			b := prepare(t, db, nil)
			b.exec(statement)
			b.run()
			insertMany(t, db.Pool, 5, 2)
			b.waitRows(10, "published_at IS NOT NULL")
			b.wait("a sweep", func() bool { return !b.Stats().LastSweep.IsZero() })
			b.exec(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
				SELECT -i, 'thing', $1, 'Happened', '{}' FROM generate_series(1, 5) i`, aggregateID(1))
			b.waitRows(15, "published_at IS NOT NULL")
			if warned := strings.Contains(b.log.String(), "ids_above_sequence"); warned != strings.HasSuffix(name, "above the sequence") {
				t.Errorf("it has warned of ids above the sequence: %t", warned)
			}
		})
	}
}

// The sweep ends at the watermark; a retry that somebody made due without a word is found above it too.
func TestRetryAboveTheSequenceIsFound(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	b := prepare(t, db, nil)
	b.exec(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at)
		VALUES (1001, 'thing', gen_random_uuid(), 'Happened', '{}', 1, now() + interval '1 day')`)
	b.run()
	b.wait("a sweep", func() bool { return !b.Stats().LastSweep.IsZero() })
	b.exec(`UPDATE events.outbox SET next_retry_at = now()`)
	b.waitRows(1, "published_at IS NOT NULL")
	if n := strings.Count(b.log.String(), "ids_above_sequence"); n != 1 {
		t.Errorf("it has warned of the id %d times", n)
	}
}
