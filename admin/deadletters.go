package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox/db"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// batchSize is how many dead letters one transaction takes on where there may be many.
const batchSize = 500

// lockPatience is how long an event that somebody else has locked is waited for.
const lockPatience = 5 * time.Second

// NotDeadError says which events are no dead letters, of those that were to be redriven or discarded. Nothing was changed.
type NotDeadError struct {
	Missing []int64         // there is no such event
	Other   map[int64]State // by id
}

// Error implements error.
func (e *NotDeadError) Error() string {
	var problems []string
	for _, id := range e.Missing {
		problems = append(problems, fmt.Sprintf("event %d does not exist", id))
	}
	for _, id := range slices.Sorted(maps.Keys(e.Other)) {
		problems = append(problems, fmt.Sprintf("event %d is %s, not dead", id, e.Other[id]))
	}
	const most = 5
	if more := len(problems) - most; more > 0 {
		problems = append(problems[:most], fmt.Sprintf("and so are %d more", more))
	}
	return strings.Join(problems, "; ")
}

// CheckDead returns a [*NotDeadError] unless all of some events are dead letters.
func CheckDead(ctx context.Context, db DB, ids []int64) error {
	return within(ctx, db, func(_ pgx.Tx, q *eventsdb.Queries) error {
		_, err := lock(ctx, q, unique(ids), true)
		return err
	})
}

// lock returns those of some events that are dead letters, and keeps them so until the transaction ends; nil, and a
// [*NotDeadError], if all have to be and one is not.
func lock(ctx context.Context, q *eventsdb.Queries, ids []int64, all bool) ([]int64, error) {
	if err := q.TuneOperation(ctx, lockPatience.Milliseconds()); err != nil {
		return nil, err
	}
	rows, err := q.LockEvents(ctx, ids)
	if err != nil {
		return nil, err
	}
	wrong := &NotDeadError{Other: make(map[int64]State)}
	found := make(map[int64]bool, len(rows))
	var dead []int64
	for _, r := range rows {
		found[r.ID] = true
		if state := stateOf(r.PublishedAt, r.NextRetryAt); state != Dead {
			wrong.Other[r.ID] = state
			continue
		}
		dead = append(dead, r.ID)
	}
	for _, id := range ids {
		if !found[id] {
			wrong.Missing = append(wrong.Missing, id)
		}
	}
	if all && len(wrong.Missing)+len(wrong.Other) > 0 {
		return nil, wrong
	}
	return dead, nil
}

// inBatches calls act with events in the order of their ids, a batch at a time.
func inBatches(ids []int64, act func(ids []int64) error) error {
	for batch := range slices.Chunk(unique(ids), batchSize) {
		if err := act(batch); err != nil {
			return err
		}
	}
	return nil
}

// unique returns ids in rising order, each once.
func unique(ids []int64) []int64 { return slices.Compact(slices.Sorted(slices.Values(ids))) }

// ErrUncertain is wrapped by the error of a transaction whose end is not known: it may have been done.
var ErrUncertain = errors.New("the answer to COMMIT was lost, so the last batch may have been done: look")

// closing is how long the end of a transaction may take after it was interrupted.
const closing = 5 * time.Second

// within runs do in a transaction.
func within(ctx context.Context, db DB, do func(tx pgx.Tx, q *eventsdb.Queries) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	ending, cancel := outliving(ctx, closing)
	defer cancel()
	defer tx.Rollback(ending) //nolint:errcheck // what failed is said, a session that is gone takes it back by itself, and after COMMIT it does nothing
	if err := cmp.Or(do(tx, queries(tx)), ctx.Err()); err != nil {
		return err
	}
	err = tx.Commit(ending) // not ctx: whoever interrupts it would not know how it ended
	if _, refused := errors.AsType[*pgconn.PgError](err); err == nil || refused || errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return err
	}
	return fmt.Errorf("%w (%w)", ErrUncertain, err)
}

// outliving returns a context that ends so long after ctx.
func outliving(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return later, func() {
		stop()
		cancel()
	}
}

// queries are planned for each filter anew, as db/queries/events/operate.sql wants it.
func queries(conn eventsdb.DBTX) *eventsdb.Queries { return eventsdb.New(db.FreshPlans(conn)) }
