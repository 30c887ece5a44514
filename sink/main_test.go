package sink

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

const (
	source = "/outbox/billing"
	// deadline is how long a test waits for something that must happen.
	deadline = 20 * time.Second
	// ladderStep is the delay of a retry for which the handler asks no delay of its own.
	ladderStep = 7 * time.Minute
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newEvent(id int64) *event.Event {
	return &event.Event{
		ID:            id,
		PublicID:      event.PublicID(uuid.NameSpaceOID, id, time.Unix(1_700_000_000, 0)),
		AggregateType: "subscription",
		AggregateID:   uuid.MustParse("018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091"),
		Type:          "PaymentSucceeded",
		OccurredAt:    time.Unix(1_700_000_000, 0).UTC(),
		Version:       1,
		Data:          json.RawMessage(`{"amount": 4200}`),
		Attempt:       1,
	}
}

// outcome is what dispatch makes of one attempt to deliver e to h.
func outcome(ctx context.Context, t *testing.T, h dispatch.Handler, e *event.Event) dispatch.Outcome {
	t.Helper()
	d, err := dispatch.New(dispatch.Config{Retry: fixedDelay{}, Timeout: deadline})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Subscribe(dispatch.AnyType, "sink", h); err != nil {
		t.Fatal(err)
	}
	return d.Dispatch(ctx, dispatch.Delivery{Event: e})
}

type fixedDelay struct{}

func (fixedDelay) Delay(int) (time.Duration, bool) { return ladderStep, true }

// receive returns the next value of ch, or fails the test at the deadline.
func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(deadline):
		t.Fatalf("no %s within %s", what, deadline)
		panic("unreachable")
	}
}
