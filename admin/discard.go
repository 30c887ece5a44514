package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// Keep puts events in a safe place before they are deleted. It is called within the transaction tx that deletes them, where
// they are locked. What it writes with tx is kept if, and only if, they are deleted. What it writes elsewhere has to be safe when it
// returns, and may be there without the deletion, and twice. If it fails, nothing is deleted.
type Keep func(ctx context.Context, tx pgx.Tx, ids []int64) error

// Discard deletes dead letters, after keep has them. If one is no dead letter, nothing is changed and the error is a
// [*NotDeadError].
func Discard(ctx context.Context, db DB, ids []int64, keep Keep) (int, error) {
	n, err := discard(ctx, db, unique(ids), keep, true)
	if err != nil {
		return 0, fmt.Errorf("discard: %w", err)
	}
	return n, nil
}

// DiscardAny is [Discard] for those of some events that are dead letters, as [IDs] has found them. It works in batches, a
// transaction each: what it returns has been done, also after an error.
func DiscardAny(ctx context.Context, db DB, ids []int64, keep Keep) (discarded int, err error) {
	err = inBatches(ids, func(ids []int64) error {
		n, err := discard(ctx, db, ids, keep, false)
		discarded += n
		return err
	})
	if err != nil {
		return discarded, fmt.Errorf("discard: %w", err)
	}
	return discarded, nil
}

func discard(ctx context.Context, db DB, ids []int64, keep Keep, all bool) (n int, err error) {
	if keep == nil {
		return 0, errors.New("nothing keeps the events")
	}
	err = within(ctx, db, func(tx pgx.Tx, q *eventsdb.Queries) error {
		dead, err := lock(ctx, q, ids, all)
		if err != nil || len(dead) == 0 {
			return err
		}
		if err := keep(ctx, tx, dead); err != nil {
			return fmt.Errorf("keep the events: %w", err)
		}
		deleted, err := q.DiscardBatch(ctx, dead)
		n = int(deleted)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
