package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// Backlog is how many events are not published, and why. Counts stop at [CountAtMost] + 1, so that counting takes little however many there are.
type Backlog struct {
	Pending  int64 // never failed; among the newest that are not published
	Retrying int64 // failed, and tried again
	Due      int64 // of them: now
	Dead     int64
	// PendingWhole is false where Pending is a lower bound since there were more events than were looked at.
	PendingWhole bool
	// OldestPending is the id of the oldest event that never failed, and OldestPendingAge its age by its occurred_at. 0: there is none, or
	// there are more failed ones before it than were looked at.
	OldestPending    int64
	OldestPendingAge time.Duration
	// NotifyQueue is how full the server's queue of notifications is, from 0 to 1. It fills while a session that listens does not read.
	NotifyQueue float64
	// At is the time of the counting, by the database's clock.
	At time.Time
}

// CountBacklog counts the events that are not published, in a transaction that the caller begins: with repeatable read, an event on its way counts
// once.
func CountBacklog(ctx context.Context, tx pgx.Tx) (Backlog, error) {
	b, err := countBacklog(ctx, eventsdb.New(tx))
	if err != nil {
		return Backlog{}, fmt.Errorf("count the backlog: %w", err)
	}
	return b, nil
}

func countBacklog(ctx context.Context, q *eventsdb.Queries) (b Backlog, err error) {
	const bound = CountAtMost + 1
	if _, err := q.TuneTransaction(ctx); err != nil {
		return b, err
	}
	server, err := q.ServerState(ctx)
	if err != nil {
		return b, err
	}
	b.At, b.NotifyQueue = server.Now.Time.UTC(), server.NotifyQueue
	unfailed, err := q.CountUnfailed(ctx, bound)
	if err != nil {
		return b, err
	}
	b.Pending, b.PendingWhole = unfailed.Pending, unfailed.Scanned < bound
	failed, err := q.CountFailed(ctx, bound)
	if err != nil {
		return b, err
	}
	b.Retrying, b.Due, b.Dead = failed.Retrying, failed.Due, failed.Dead
	oldest, err := q.OldestUnfailed(ctx, bound)
	if errors.Is(err, pgx.ErrNoRows) {
		return b, nil
	}
	b.OldestPending, b.OldestPendingAge = oldest.ID, time.Duration(max(0, oldest.AgeS)*float64(time.Second))
	return b, err
}
