package dispatch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const eventType = "PaymentSucceeded"

func newEvent() *event.Event {
	return &event.Event{
		ID: 42, PublicID: uuid.New(), AggregateType: "subscription", AggregateID: uuid.New(),
		Type: eventType, Version: 1, Data: json.RawMessage(`{"secret":"payload"}`), Attempt: 1,
	}
}

func delivery() dispatch.Delivery { return dispatch.Delivery{Event: newEvent()} }

func newDispatcher(t testing.TB, cfg dispatch.Config) *dispatch.Dispatcher {
	t.Helper()
	d, err := dispatch.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func subscribe(t testing.TB, d *dispatch.Dispatcher, name string, h dispatch.HandlerFunc, opts ...dispatch.SubscribeOption) {
	t.Helper()
	if err := d.Subscribe(eventType, name, h, opts...); err != nil {
		t.Fatal(err)
	}
}

func succeed(context.Context, *event.Event) error { return nil }

func failWith(err error) dispatch.HandlerFunc {
	return func(context.Context, *event.Event) error { return err }
}

// oneMinute is a policy whose delay is easy to recognise.
func oneMinute() dispatch.RetryPolicy {
	return policyFunc(func(int) (time.Duration, bool) { return time.Minute, true })
}

type policyFunc func(attempt int) (time.Duration, bool)

func (f policyFunc) Delay(attempt int) (time.Duration, bool) { return f(attempt) }

// logBook collects log lines.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBook) logger() zerolog.Logger { return zerolog.New(b) }

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lines returns the lines whose event name is msg.
func (b *logBook) lines(t testing.TB, msg string) []map[string]any {
	t.Helper()
	var found []map[string]any
	dec := json.NewDecoder(bytes.NewReader([]byte(b.String())))
	for dec.More() {
		var line map[string]any
		if err := dec.Decode(&line); err != nil {
			t.Fatalf("log is not JSON: %v", err)
		}
		if line["message"] == msg {
			found = append(found, line)
		}
	}
	return found
}
