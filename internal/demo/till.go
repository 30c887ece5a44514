package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/event"
)

const (
	// shopSQL makes the table that stands for the services' own ones.
	shopSQL = `
CREATE TABLE shop (
    id         uuid PRIMARY KEY,
    kind       text NOT NULL,
    status     text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
)`
	// changeSQL comes before the event in every transaction: it locks the aggregate before the event's id is drawn, which
	// is what the order of events from several writers rests on.
	changeSQL = `
INSERT INTO shop (id, kind, status) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, changed_at = now()`
)

// writePatience bounds one transaction.
const writePatience = 30 * time.Second

// till writes what happens in the shop: a change of the services' own rows and the events that tell of it, in
// one transaction.
type till struct {
	pool    *pgxpool.Pool
	stories *stories
	ledger  *ledger
}

// write plays a scene. Within a handler's context the events are caused by the handled one.
func (t *till) write(ctx context.Context, s scene) (err error) {
	// A commit that is cut off has an unknown outcome, which no ledger can hold.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writePatience)
	defer cancel()
	tx, err := t.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	ids, err := t.change(ctx, tx, s)
	if err != nil || s.abandon {
		t.ledger.abandon(ids)
		return errors.Join(err, tx.Rollback(ctx))
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	t.ledger.commit(ids, time.Now())
	for _, st := range s.stories {
		st.next = st.next[1:]
		t.stories.resume(st)
	}
	return nil
}

// change does what is inside the transaction. The events are in the ledger when it returns: a handler can have
// one before the commit is acknowledged here.
func (t *till) change(ctx context.Context, tx pgx.Tx, s scene) ([]int64, error) {
	messages := make([]outbox.Message, len(s.stories))
	for i, st := range s.stories {
		eventType := st.next[0]
		if _, err := tx.Exec(ctx, changeSQL, st.id, st.kind, eventType); err != nil {
			return nil, fmt.Errorf("change %s: %w", st.kind, err)
		}
		st.purchase.Trouble = s.trouble
		messages[i] = outbox.Message{
			AggregateType: st.kind, AggregateID: st.id, EventType: eventType,
			Data: st.purchase, CorrelationID: st.correlation,
		}
	}
	ids, err := outbox.PublishBatch(ctx, tx, messages)
	if err != nil {
		return nil, err
	}
	cause, _ := event.FromContext(ctx)
	for i, id := range ids {
		t.ledger.publish(id, messages[i], cause)
	}
	return ids, nil
}
