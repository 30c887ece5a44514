package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

func Example() {
	type payment struct {
		Amount int `json:"amount"`
	}
	d, err := dispatch.New(dispatch.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = errors.Join(
		d.Subscribe("PaymentSucceeded", "receipt", dispatch.Typed(
			func(_ context.Context, _ *event.Event, p payment) error {
				fmt.Println("receipt over", p.Amount)
				return nil
			})),
		d.Subscribe(dispatch.AnyType, "audit", dispatch.HandlerFunc(
			func(context.Context, *event.Event) error {
				return dispatch.RetryAfter(time.Minute, errors.New("audit is down for maintenance"))
			}), dispatch.WithTimeout(5*time.Second)),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	out := d.Dispatch(context.Background(), dispatch.Delivery{
		Event: &event.Event{ID: 1, Type: "PaymentSucceeded", Data: json.RawMessage(`{"amount": 990}`)},
	})
	fmt.Println(out.Kind, out.Delay, "·", out.Error, "· delivered to", out.Delivered)
	// Output:
	// receipt over 990
	// retry 1m0s · audit: audit is down for maintenance · delivered to [receipt]
}

func ExampleBackOff() {
	policy := dispatch.BackOff(func() backoff.BackOff {
		return backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(10*time.Second), backoff.WithMultiplier(3), backoff.WithRandomizationFactor(0),
			backoff.WithMaxInterval(time.Hour),
			backoff.WithMaxElapsedTime(0), // MaxAttempts is the limit
		)
	})
	for attempt := range 4 {
		fmt.Println(policy.Delay(attempt + 1))
	}
	// Output:
	// 10s true
	// 30s true
	// 1m30s true
	// 4m30s true
}
