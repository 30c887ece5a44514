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

// RedriveAll is [Redrive] for the dead letters that match a filter, whatever its State, and are there when it begins. It works
// in batches, a transaction each: what it returns has been done, also after an error.
func RedriveAll(ctx context.Context, db DB, f Filter) (Redriven, error) {
	done := Redriven{Overtaken: make(map[int64]int64)}
	err := each(ctx, db, f, func(ids []int64) error {
		part, err := redrive(ctx, db, ids, false)
		done.Events += part.Events
		maps.Copy(done.Overtaken, part.Overtaken)
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
		overtaken, err := q.LaterPublished(ctx, eventsdb.LaterPublishedParams{Ids: dead, Bound: Next})
		if err != nil {
			return err
		}
		n, err := q.RedriveBatch(ctx, dead)
		if err != nil {
			return err
		}
		done = Redriven{Events: int(n), Overtaken: make(map[int64]int64, len(overtaken))}
		for _, o := range overtaken {
			done.Overtaken[o.ID] = o.Later
		}
		return q.Notify(ctx, eventsdb.NotifyParams{Channel: pgnames.RetryChannel})
	})
	if err != nil {
		return Redriven{}, err
	}
	return done, nil
}
