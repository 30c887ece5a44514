package dispatch_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

// BenchmarkDispatch measures what one event costs apart from its handlers, which do nothing.
func BenchmarkDispatch(b *testing.B) {
	for _, subscribers := range []int{1, 3} {
		b.Run(fmt.Sprintf("subscribers=%d", subscribers), func(b *testing.B) {
			d, err := dispatch.New(dispatch.Config{})
			if err != nil {
				b.Fatal(err)
			}
			nop := dispatch.HandlerFunc(func(context.Context, *event.Event) error { return nil })
			for i := range subscribers {
				if err := d.Subscribe("PaymentSucceeded", fmt.Sprintf("subscriber-%d", i), nop); err != nil {
					b.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			dl := dispatch.Delivery{Event: &event.Event{ID: 1, Type: "PaymentSucceeded", AggregateID: uuid.New()}}
			b.ReportAllocs()
			for b.Loop() {
				if out := d.Dispatch(ctx, dl); out.Kind != dispatch.Published {
					b.Fatal(out)
				}
			}
		})
	}
}
