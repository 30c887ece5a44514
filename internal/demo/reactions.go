package demo

import (
	"context"
	"errors"
	"time"

	"github.com/seed-9a365b49/outbox"
)

// subscribers says which service handles which event.
var subscribers = map[string]string{
	orderPlaced:       "payments",
	paymentRequested:  "payments",
	paymentAuthorized: "accounting",
	paymentCaptured:   "shipping",
	shipmentRequested: "shipping",
	shipmentPickedUp:  "notifications",
	shipmentArrived:   "orders",
	orderCompleted:    "notifications",
}

// subscribe registers the handlers of all services.
func (t *till) subscribe(w *outbox.Worker) {
	for eventType, subscriber := range subscribers {
		_ = w.Subscribe(eventType, subscriber, outbox.Typed(t.react)) // Run returns the error
	}
}

// react handles one event. Three types have a consequence, which is an event of its own.
func (t *till) react(ctx context.Context, e *outbox.Event, p purchase) error {
	if p.Trouble != nil && e.Attempt <= p.Trouble.Attempts {
		return errors.New(p.Trouble.Reason)
	}
	p.Trouble = nil
	s := story{kind: e.AggregateType, id: e.AggregateID, purchase: p, correlation: e.Metadata.CorrelationID}
	switch e.Type {
	case orderPlaced:
		return t.publishFirst(ctx, s.payment(), paymentRequested)
	case paymentCaptured:
		return t.publishFirst(ctx, s.shipment(), shipmentRequested)
	case shipmentArrived:
		s.kind, s.id = "order", p.Order
		return t.publishFirst(ctx, s, orderCompleted)
	}
	return nil
}

// publishFirst publishes an event of a story before those that its service goes on with.
func (t *till) publishFirst(ctx context.Context, s story, eventType string) error {
	s.next = append([]string{eventType}, s.next...)
	return t.write(ctx, scene{stories: []story{s}})
}

// pastDueSQL asks the clock that decided when the retry was due, so that no two clocks are compared. It runs
// while the attempt does, when next_retry_at is still that of this attempt. Index: outbox_pkey.
const pastDueSQL = `
SELECT (extract(epoch FROM clock_timestamp() - next_retry_at) * 1000000)::bigint
FROM events.outbox WHERE id = $1`

// observe is the middleware that tells the ledger of every attempt.
func (t *till) observe(next outbox.Handler) outbox.Handler {
	return outbox.HandlerFunc(func(ctx context.Context, e *outbox.Event) error {
		began := time.Now()
		t.ledger.begin(e)
		late := t.pastDue(ctx, e)
		err := next.Handle(ctx, e)
		t.ledger.end(e, began, late, err, time.Now())
		return err
	})
}

// pastDue is how long ago a retry was due: a little too much, by a round trip to the database. It is 0 for a
// first attempt.
func (t *till) pastDue(ctx context.Context, e *outbox.Event) time.Duration {
	if e.Attempt == 1 {
		return 0
	}
	var microseconds int64
	if err := t.pool.QueryRow(ctx, pastDueSQL, e.ID).Scan(&microseconds); err != nil {
		return 0 // the handler, which asks the same database, fails too and says why
	}
	return time.Duration(microseconds) * time.Microsecond
}
