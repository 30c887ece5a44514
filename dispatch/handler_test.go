package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

func TestTyped(t *testing.T) {
	t.Parallel()
	type payment struct {
		Amount int64  `json:"amount"`
		Note   string `json:"note"`
	}
	for _, tc := range []struct {
		name   string
		data   string
		want   payment
		decode bool
	}{
		{"decodes the data", `{"amount":9007199254740993,"note":"x"}`, payment{9007199254740993, "x"}, true},
		{"ignores fields that it does not know", `{"amount":1,"new":{"a":[1]}}`, payment{Amount: 1}, true},
		{"refuses another type", `{"amount":"one"}`, payment{}, false},
		{"refuses a number that does not fit", `{"amount":1e400}`, payment{}, false},
		{"refuses what is not JSON", `{`, payment{}, false},
		{"refuses no data", ``, payment{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			called := false
			h := dispatch.Typed(func(_ context.Context, e *event.Event, got payment) error {
				called = true
				if got != tc.want || e.ID != 42 {
					t.Errorf("got %+v of event %d", got, e.ID)
				}
				return nil
			})
			e := newEvent()
			e.Data = json.RawMessage(tc.data)
			err := h.Handle(t.Context(), e)
			if called != tc.decode || errors.Is(err, dispatch.ErrDecode) == tc.decode {
				t.Fatalf("called %v, error %v", called, err)
			}
		})
	}

	t.Run("data that does not decode is retried: the next attempt may be a newer worker's", func(t *testing.T) {
		t.Parallel()
		d := newDispatcher(t, dispatch.Config{})
		h := dispatch.Typed(func(context.Context, *event.Event, int) error { return nil })
		if err := d.Subscribe(eventType, "a", h); err != nil {
			t.Fatal(err)
		}
		if out := d.Dispatch(t.Context(), delivery()); out.Kind != dispatch.Retry {
			t.Fatalf("%+v", out)
		}
	})

	t.Run("passes the function's error on", func(t *testing.T) {
		t.Parallel()
		h := dispatch.Typed(func(context.Context, *event.Event, any) error { return errBoom })
		if err := h.Handle(t.Context(), newEvent()); !errors.Is(err, errBoom) || errors.Is(err, dispatch.ErrDecode) {
			t.Fatal(err)
		}
	})
}
