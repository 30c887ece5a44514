package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pause"
)

// Defaults of [BackfillOptions].
const (
	DefaultBatchSize = 1000
	DefaultPause     = 100 * time.Millisecond
)

// BackfillOptions says how gently to copy.
type BackfillOptions struct {
	BatchSize int           // rows looked at in a transaction; 0: 1,000
	Pause     time.Duration // after a transaction that copied; 0: 100 ms, negative: none
	DryRun    bool          // count, and copy nothing
}

// Backfill copies the events that are published and have no copy, such as those from before audit was switched on, and returns how
// many. It walks the events in the order of their ids, in small batches with a transaction each: it can be stopped at any time, run beside workers
// and archives, and run again. What it returns has been done, also after an error.
func Backfill(ctx context.Context, db DB, o BackfillOptions) (copied int64, err error) {
	if o.BatchSize < 0 {
		return 0, errors.New("backfill audit.events: a negative batch size")
	}
	if o.BatchSize == 0 {
		o.BatchSize = DefaultBatchSize
	}
	if o.Pause == 0 {
		o.Pause = DefaultPause
	}
	for after, more := int64(math.MinInt64), true; more; {
		var n int64
		n, after, more, err = step(ctx, db, after, o)
		copied += n
		if err == nil && n > 0 && !o.DryRun && o.Pause > 0 {
			err = pause.For(ctx, o.Pause)
		}
		if err != nil {
			return copied, fmt.Errorf("backfill audit.events: %w", err)
		}
	}
	return copied, nil
}

// step copies what is missing of the next rows after an id.
func step(ctx context.Context, db DB, after int64, o BackfillOptions) (copied, last int64, more bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		q := queries(tx)
		page, err := q.NextPublished(ctx, after, int64(o.BatchSize))
		if err != nil {
			return err
		}
		last, more = page.LastID, page.Scanned == int64(o.BatchSize)
		copied = int64(len(page.Missing))
		if copied == 0 || o.DryRun {
			return nil
		}
		copied, err = q.Record(ctx, page.Missing)
		return err
	})
	if err != nil {
		return 0, after, false, err
	}
	return copied, last, more, nil
}
