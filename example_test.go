package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

type payment struct {
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
}

var subscription = uuid.MustParse("018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091")

// A service that embeds the worker. Run goes on until its context ends, for instance that of signal.NotifyContext; here
// the handler ends it.
func Example() {
	databaseURL, drop := exampleDatabase()
	defer drop()
	publishPayment(databaseURL)
	ctx, stop := context.WithCancel(context.Background())

	worker, err := outbox.NewWorker(outbox.Config{DatabaseURL: databaseURL})
	if err != nil {
		log.Fatal(err)
	}
	_ = worker.Subscribe("PaymentSucceeded", "receipts", outbox.Typed(
		func(ctx context.Context, e *outbox.Event, p payment) error {
			fmt.Printf("%s %s: a receipt over %d %s\n", e.AggregateType, e.Type, p.Amount, p.Currency)
			stop()
			return nil
		}))
	if err := worker.Run(ctx); err != nil { // also the error of Subscribe
		log.Fatal(err)
	}
	// Output:
	// subscription PaymentSucceeded: a receipt over 4200 EUR
}

// The event is written in the transaction of the rows that it tells of: both are committed, or neither.
func ExamplePublish() {
	databaseURL, drop := exampleDatabase()
	defer drop()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	tx, err := pool.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a commit
	// … UPDATE billing.subscriptions SET …
	id, err := outbox.Publish(ctx, tx, outbox.Message{
		AggregateType: "subscription", AggregateID: subscription,
		EventType: "PaymentSucceeded", Data: payment{Amount: 4200, Currency: "EUR"},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("published as", id)
	// Output:
	// published as 1
}

// A message that the database could not take is rejected before it is sent, so the transaction can go on.
func ExamplePublish_invalid() {
	databaseURL, drop := exampleDatabase()
	defer drop()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	_, err = outbox.Publish(ctx, pool, outbox.Message{
		AggregateType: "subscription", EventType: "PaymentSucceeded", Data: func() {},
	})
	fmt.Println(errors.Is(err, outbox.ErrInvalidMessage))
	var invalid *outbox.InvalidMessageError
	if errors.As(err, &invalid) {
		for _, field := range invalid.Fields {
			fmt.Println(field)
		}
	}
	// Output:
	// true
	// aggregate_id: is the nil UUID
	// data: json: unsupported type: func()
}

// Many events in one round trip. Those of one aggregate are handled in the order of the messages.
func ExamplePublishBatch() {
	databaseURL, drop := exampleDatabase()
	defer drop()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	ids, err := outbox.PublishBatch(ctx, pool, []outbox.Message{
		{AggregateType: "subscription", AggregateID: subscription, EventType: "SubscriptionStarted"},
		{AggregateType: "subscription", AggregateID: subscription, EventType: "PaymentSucceeded", Data: payment{Amount: 4200, Currency: "EUR"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("published as", ids)
	// Output:
	// published as [1 2]
}

// With database/sql, and so with the libraries on top of it.
func ExamplePublishSQL() {
	databaseURL, drop := exampleDatabase()
	defer drop()
	ctx := context.Background()
	db, err := sql.Open("pgx", databaseURL) // of github.com/jackc/pgx/v5/stdlib; "postgres" of lib/pq does as well
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	id, err := outbox.PublishSQL(ctx, tx, outbox.Message{
		AggregateType: "subscription", AggregateID: subscription,
		EventType: "PaymentSucceeded", Data: payment{Amount: 4200, Currency: "EUR"},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("published as", id)
	// Output:
	// published as 1
}

// A handler that takes the event's data as a Go type. What it returns decides what becomes of the event: nil is
// delivered, an error is retried, a permanent one is not.
func ExampleTyped() {
	handler := outbox.Typed(func(ctx context.Context, e *outbox.Event, p payment) error {
		switch {
		case p.Amount < 0:
			return outbox.Permanent(fmt.Errorf("a payment of %d", p.Amount))
		case p.Currency == "JPY":
			return outbox.RetryAfter(time.Minute, errors.New("Tokyo is closed"))
		}
		fmt.Println("received", p.Amount, p.Currency)
		return nil
	})

	for _, data := range []string{`{"amount": 4200, "currency": "EUR"}`, `{"amount": -1}`, `{"amount": 1, "currency": "JPY"}`} {
		if err := handler.Handle(context.Background(), &outbox.Event{Data: []byte(data)}); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// received 4200 EUR
	// a payment of -1
	// Tokyo is closed
}

// Middleware is a function around every handler.
func ExampleWorker_Use() {
	databaseURL, drop := exampleDatabase()
	defer drop()
	publishPayment(databaseURL)
	ctx, stop := context.WithCancel(context.Background())

	worker, err := outbox.NewWorker(outbox.Config{DatabaseURL: databaseURL})
	if err != nil {
		log.Fatal(err)
	}
	worker.Use(func(next outbox.Handler) outbox.Handler {
		return outbox.HandlerFunc(func(ctx context.Context, e *outbox.Event) error {
			fmt.Println("begin", e.Type, "attempt", e.Attempt)
			err := next.Handle(ctx, e)
			fmt.Println("end  ", e.Type, "error", err)
			return err
		})
	})
	_ = worker.Subscribe("PaymentSucceeded", "receipts", outbox.HandlerFunc(
		func(ctx context.Context, e *outbox.Event) error {
			stop()
			return nil
		}))
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// begin PaymentSucceeded attempt 1
	// end   PaymentSucceeded error <nil>
}

// An event that a handler publishes names the handled one as its cause, and belongs to the same workflow.
func ExampleWorker_Subscribe_causation() {
	databaseURL, drop := exampleDatabase()
	defer drop()
	publishPayment(databaseURL)
	ctx, stop := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	worker, err := outbox.NewWorker(outbox.Config{Pool: pool})
	if err != nil {
		log.Fatal(err)
	}
	var cause uuid.UUID
	_ = worker.Subscribe("PaymentSucceeded", "billing", outbox.HandlerFunc(
		func(ctx context.Context, e *outbox.Event) error {
			cause = e.PublicID
			_, err := outbox.Publish(ctx, pool, outbox.Message{ // with the handler's context
				AggregateType: "invoice", AggregateID: uuid.New(), EventType: "InvoicePaid",
			})
			return err
		}))
	_ = worker.Subscribe("InvoicePaid", "archive", outbox.HandlerFunc(
		func(ctx context.Context, e *outbox.Event) error {
			fmt.Println("caused by the payment:", e.Metadata.CausationID == cause.String())
			fmt.Println("workflow:", e.Metadata.CorrelationID)
			stop()
			return nil
		}))
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// caused by the payment: true
	// workflow: checkout-7
}

// A retry ladder of one's own. After four failed attempts the event is a dead letter.
func ExampleConfig_retry() {
	worker, err := outbox.NewWorker(outbox.Config{
		DatabaseURL: "postgres://localhost/billing",
		Retry:       dispatch.Ladder(time.Second, 10*time.Second, time.Minute),
		MaxAttempts: 4,
	})
	fmt.Println(worker != nil, err)
	// Output:
	// true <nil>
}

// publishPayment publishes the event that the examples handle.
func publishPayment(databaseURL string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	_, err = outbox.Publish(ctx, pool, outbox.Message{
		AggregateType: "subscription", AggregateID: subscription, CorrelationID: "checkout-7",
		EventType: "PaymentSucceeded", Data: payment{Amount: 4200, Currency: "EUR"},
	})
	if err != nil {
		log.Fatal(err)
	}
}

// exampleDatabase returns a database of the tests' server with the outbox in it, as outbox.Migrate makes it.
func exampleDatabase() (databaseURL string, drop func()) {
	t := &exampleTB{}
	return pgtest.Database(t).URL, t.end
}

// exampleTB is what pgtest needs of a test, for examples, which have none.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (t *exampleTB) Helper()                           {}
func (t *exampleTB) Context() context.Context          { return context.Background() }
func (t *exampleTB) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *exampleTB) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *exampleTB) end() {
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		cleanup := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		cleanup()
	}
}
