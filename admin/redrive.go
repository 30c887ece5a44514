package admin

import (
	"context"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

// Redriven is what [Redrive] did.
type Redriven struct {
	Events int // how many are tried again
	// Overtaken has the events that go out after later ones of their aggregate: by id, how many of those were published, among the
	// next [Next].
	Overtaken map[int64]int64
	// Waiting has the events that are not tried yet, since an earlier one of their aggregate is in retry: by id, the id of that one.
	Waiting map[int64]int64
}

// Next is how many of the next events of an aggregate [Redriven] looks at.
const Next = 100

// Redrive has dead letters tried again at once, in the order of their ids, and wakes the worker. Each has one attempt: RetryCount
// stays, and if it fails again it is dead again. Until then it holds back the later events of its aggregate. If one is no
// dead letter, nothing is changed and the error is a [*NotDeadError].
func Redrive(ctx context.Context, db DB, ids []int64) (Redriven, error) {
	done, err := redrive(ctx, db, unique(ids), true)
	if err != nil {
		return Redriven{}, fmt.Errorf("redrive: %w", err)
	}
	return done, nil
}

// RedriveAny is [Redrive] for those of some events that are dead letters, as [IDs] has found them. It works in batches, a
// transaction each: what it returns has been done, also after an error.
func RedriveAny(ctx context.Context, db DB, ids []int64) (Redriven, error) {
	done := Redriven{Overtaken: make(map[int64]int64), Waiting: make(map[int64]int64)}
	err := inBatches(ids, func(ids []int64) error {
		part, err := redrive(ctx, db, ids, false)
		done.Events += part.Events
		maps.Copy(done.Overtaken, part.Overtaken)
		maps.Copy(done.Waiting, part.Waiting)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("redrive: %w", err)
	}
	return done, nil
}

func redrive(ctx context.Context, db DB, ids []int64, all bool) (done Redriven, err error) {
	err = within(ctx, db, func(_ pgx.Tx, q *eventsdb.Queries) error {
		dead, err := lock(ctx, q, ids, all)
		if err != nil || len(dead) == 0 {
			return err
		}
		if err := q.TuneLookups(ctx); err != nil {
			return err
		}
		overtaken, err := q.LaterPublished(ctx, eventsdb.LaterPublishedParams{Ids: dead, Bound: Next})
		if err != nil {
			return err
		}
		n, err := q.RedriveBatch(ctx, dead)
		if err != nil {
			return err
		}
		waiting, err := q.HeldBack(ctx, dead)
		if err != nil {
			return err
		}
		done = Redriven{Events: int(n), Overtaken: make(map[int64]int64, len(overtaken)), Waiting: make(map[int64]int64, len(waiting))}
		for _, o := range overtaken {
			done.Overtaken[o.ID] = o.Later
		}
		for _, w := range waiting {
			done.Waiting[w.ID] = w.BlockedBy
		}
		return q.Notify(ctx, eventsdb.NotifyParams{Channel: pgnames.RetryChannel})
	})
	if err != nil {
		return Redriven{}, err
	}
	return done, nil
}
