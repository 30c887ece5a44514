package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/tracing"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const producer = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func recording(t testing.TB, opts ...sdktrace.TracerProviderOption) (*sdktrace.TracerProvider, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(recorder))...), recorder
}

func attributesOf(span sdktrace.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

// run runs a worker until the test ends.
func run(ctx context.Context, t *testing.T, db *pgtest.DB, register func(*outbox.Worker)) {
	t.Helper()
	worker, err := outbox.NewWorker(outbox.Config{DatabaseURL: db.URL})
	if err != nil {
		t.Fatal(err)
	}
	register(worker)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-worker.Ready():
	case <-time.After(time.Minute):
		t.Fatal("not ready")
	}
}

// spansNamed waits until n spans of a name have ended, and returns them in that order.
func spansNamed(t *testing.T, recorder *tracetest.SpanRecorder, n int, name string) []sdktrace.ReadOnlySpan {
	t.Helper()
	var found []sdktrace.ReadOnlySpan
	pgtest.Eventually(t, func() error {
		found = nil
		for _, span := range recorder.Ended() {
			if span.Name() == name {
				found = append(found, span)
			}
		}
		if len(found) != n {
			return fmt.Errorf("%d spans named %s, want %d", len(found), name, n)
		}
		return nil
	})
	return found
}

// TestFromPublisherToHandler follows an event, and the one that its handler publishes.
func TestFromPublisherToHandler(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	services, publishing := recording(t) // the publisher and the worker are different programs
	workers, delivering := recording(t)
	process, _ := services.Tracer("worker").Start(t.Context(), "the process")
	run(process, t, db, func(w *outbox.Worker) {
		w.Use(tracing.Middleware(tracing.WithTracerProvider(workers)))
		fail := sync.OnceValue(func() error { return outbox.RetryAfter(time.Millisecond, errors.New("try again")) })
		first := true
		_ = w.Subscribe("Placed", "shipping", outbox.HandlerFunc(func(ctx context.Context, e *outbox.Event) error {
			if first {
				first = false
				return fail()
			}
			_, err := outbox.Publish(ctx, db.Pool, outbox.Message{
				AggregateType: "parcel", AggregateID: uuid.New(), EventType: "Packed", Data: event.TraceParent(ctx),
			})
			return err
		}))
		_ = w.Subscribe("Packed", "mail", outbox.HandlerFunc(func(context.Context, *outbox.Event) error { return nil }))
	})

	ctx, request := services.Tracer("service").Start(t.Context(), "request")
	aggregate := uuid.New()
	id, err := outbox.Publish(ctx, db.Pool, outbox.Message{
		AggregateType: "order", AggregateID: aggregate, EventType: "Placed", CorrelationID: "checkout-42",
		Data: map[string]string{"card": "4111111111111111"},
	})
	if err != nil {
		t.Fatal(err)
	}
	publicID, err := outbox.LookupPublicID(t.Context(), db.Pool, id)
	if err != nil {
		t.Fatal(err)
	}
	published := spansNamed(t, publishing, 1, "publish Placed")[0]
	mail := spansNamed(t, delivering, 1, "process Packed")[0]
	attempts := spansNamed(t, delivering, 2, "process Placed")

	for i, span := range attempts {
		if span.SpanKind() != trace.SpanKindConsumer || span.Parent().IsValid() || span.SpanContext().TraceID() == request.SpanContext().TraceID() {
			t.Errorf("%s, parent %v, trace %v", span.SpanKind(), span.Parent(), span.SpanContext().TraceID())
		}
		if len(span.Links()) != 1 || !span.Links()[0].SpanContext.Equal(published.SpanContext().WithRemote(true)) {
			t.Errorf("links to %v, and not to %v", span.Links(), published.SpanContext())
		}
		want := map[string]any{
			"messaging.system": "outbox", "messaging.operation.name": "process", "messaging.operation.type": "process",
			"messaging.destination.name": "Placed", "messaging.consumer.group.name": "shipping",
			"messaging.message.id": publicID.String(), "messaging.message.conversation_id": "checkout-42",
			"outbox.event_id": id, "outbox.aggregate_type": "order", "outbox.attempt": int64(i + 1),
		}
		if i == 0 {
			want["error.type"] = "*dispatch.retryAfterError"
		}
		if got := attributesOf(span); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("attributes\n%v\nwant\n%v", got, want)
		}
		if text := fmt.Sprint(span.Attributes(), span.Events(), span.Status()); strings.Contains(text, "4111") || strings.Contains(text, aggregate.String()) {
			t.Errorf("data, or the aggregate's id, in %s", text)
		}
	}
	if s := attempts[0].Status(); s.Code != codes.Error || s.Description != "try again" || len(attempts[0].Events()) != 1 {
		t.Errorf("%+v, events %v", s, attempts[0].Events())
	}
	if s := attempts[1].Status(); s.Code != codes.Unset || len(attempts[1].Events()) != 0 {
		t.Errorf("%+v, events %v", s, attempts[1].Events())
	}

	// What the handler publishes is traced by the worker's provider, and belongs to the delivery.
	packed := spansNamed(t, delivering, 1, "publish Packed")[0]
	if packed.Parent().SpanID() != attempts[1].SpanContext().SpanID() {
		t.Errorf("the handler's event has the parent %v", packed.Parent())
	}
	if len(mail.Links()) != 1 || !mail.Links()[0].SpanContext.Equal(packed.SpanContext().WithRemote(true)) {
		t.Errorf("links to %v", mail.Links())
	}
	// event.TraceParent stays the publisher's.
	var data string
	if err := db.Pool.QueryRow(t.Context(), "SELECT payload->>'data' FROM events.outbox WHERE event_type = 'Packed'").Scan(&data); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(data, published.SpanContext().SpanID().String()) {
		t.Errorf("event.TraceParent in the handler: %s", data)
	}
}

// TestMalformedTraceParent has foreign producers write what they like.
func TestMalformedTraceParent(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	provider, recorder := recording(t)
	run(t.Context(), t, db, func(w *outbox.Worker) {
		w.Use(tracing.Middleware(tracing.WithTracerProvider(provider)))
		_ = w.Subscribe(outbox.AnyType, "all", outbox.HandlerFunc(func(context.Context, *outbox.Event) error { return nil }))
	})
	payloads := []string{
		`{"version": 1, "data": 1}`,
		`{"version": 1, "data": 1, "metadata": {"traceparent": "trace"}}`,
		`{"version": 1, "data": 1, "metadata": {"traceparent": ""}}`,
		`{"version": 1, "data": 1, "metadata": {"traceparent": 7}}`,
		`{"version": 1, "data": 1, "metadata": {"traceparent": null, "tracestate": "a=1"}}`,
		`{"version": 1, "data": 1, "metadata": {"traceparent": "00-00000000000000000000000000000000-00f067aa0ba902b7-01"}}`,
		`{"version": 1, "data": 1, "metadata": {"traceparent": "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}`,
		`{"version": 1, "data": 1, "metadata": {"traceparent": "` + strings.Repeat("0", 1<<20) + `"}}`,
		`{"version": 1, "data": 1, "metadata": ["` + producer + `"]}`,
		`"no envelope"`,
	}
	for _, payload := range payloads {
		if _, err := db.Pool.Exec(t.Context(), `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('order', gen_random_uuid(), 'Placed', $1::text::jsonb)`, payload); err != nil {
			t.Fatal(err)
		}
	}
	for _, span := range spansNamed(t, recorder, len(payloads), "process Placed") {
		if len(span.Links()) != 0 || span.Status().Code != codes.Unset {
			t.Errorf("links %v, %+v", span.Links(), span.Status())
		}
	}
	pgtest.Eventually(t, func() error {
		var left int
		if err := db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM events.outbox WHERE published_at IS NULL").Scan(&left); err != nil || left > 0 {
			return fmt.Errorf("%d events are left, %w", left, err)
		}
		return nil
	})
}

// deliver dispatches one event to h within the middleware.
func deliver(t *testing.T, h dispatch.HandlerFunc, opts ...tracing.Option) (dispatch.Outcome, string) {
	t.Helper()
	var log bytes.Buffer
	d, err := dispatch.New(dispatch.Config{Log: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	d.Use(tracing.Middleware(opts...))
	if err := d.Subscribe("Placed", "shipping", h); err != nil {
		t.Fatal(err)
	}
	e := &event.Event{ID: 7, PublicID: uuid.New(), Type: "Placed", Attempt: 1, Metadata: event.Metadata{TraceParent: producer, TraceState: "a=1"}}
	return d.Dispatch(t.Context(), dispatch.Delivery{Event: e}), log.String()
}

func handlerThatPanics(context.Context, *event.Event) error { panic("boom\xff") }

type brokenError struct{ text *string }

func (e *brokenError) Error() string { return *e.text }

func TestFailures(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler                 dispatch.HandlerFunc
		errorType, text, reason string
	}{
		"an error": {
			func(context.Context, *event.Event) error { return fmt.Errorf("deliver: %w", context.DeadlineExceeded) },
			"context.deadlineExceededError", "deliver: context deadline exceeded", "shipping: deliver: context deadline exceeded",
		},
		"a text that is not UTF-8": {
			func(context.Context, *event.Event) error { return errors.New("a\xffb\x00") },
			"*errors.errorString", dispatch.CleanError("a\xffb\x00"), "shipping: a",
		},
		"an error that breaks": {
			func(context.Context, *event.Event) error { return &brokenError{} },
			"*tracing_test.brokenError", "%!v(PANIC=Error method: runtime error: invalid memory address or nil pointer dereference)", "shipping: ",
		},
		"a panic":  {handlerThatPanics, "panic", dispatch.CleanError("panic: boom\xff"), "shipping: panic: boom"},
		"a Goexit": {func(context.Context, *event.Event) error { runtime.Goexit(); return nil }, "goexit", "handler ended its goroutine (runtime.Goexit)", "runtime.Goexit"},
		"an error of the runtime": {
			func(_ context.Context, e *event.Event) error { return []error{}[len(e.Type):][0] },
			"panic", "panic: runtime error: slice bounds out of range [6:0]", "shipping: panic: runtime error: slice bounds",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider, recorder := recording(t)
			out, log := deliver(t, tt.handler, tracing.WithTracerProvider(provider))
			if out.Kind != dispatch.Retry || !strings.Contains(out.Error, tt.reason) {
				t.Errorf("%+v", out)
			}
			if len(recorder.Ended()) != 1 {
				t.Fatalf("%d spans have ended", len(recorder.Ended()))
			}
			span := recorder.Ended()[0]
			if got := span.Status(); got.Code != codes.Error || got.Description != tt.text {
				t.Errorf("%+v", got)
			}
			if got := attributesOf(span)["error.type"]; got != tt.errorType {
				t.Errorf("error.type %v", got)
			}
			if events := span.Events(); len(events) != 1 || events[0].Name != "exception" {
				t.Errorf("recorded %d times: %v", len(events), events)
			}
			if name == "a panic" && !strings.Contains(log, "handlerThatPanics") {
				t.Errorf("the stack in the log does not begin where it panicked: %s", log)
			}
		})
	}
}

func TestContextOfHandlers(t *testing.T) {
	t.Parallel()

	t.Run("has the delivery's span, with what the publisher's is linked by", func(t *testing.T) {
		t.Parallel()
		provider, recorder := recording(t)
		var got trace.SpanContext
		deliver(t, func(ctx context.Context, _ *event.Event) error {
			got = trace.SpanContextFromContext(ctx)
			return nil
		}, tracing.WithTracerProvider(provider))
		span := recorder.Ended()[0]
		if !got.Equal(span.SpanContext()) {
			t.Errorf("%v, span %v", got, span.SpanContext())
		}
		if link := span.Links()[0].SpanContext; !link.IsRemote() || link.TraceState().String() != "a=1" || link.TraceID().String() != producer[3:35] {
			t.Errorf("a link to %v", link)
		}
	})
	t.Run("goes on with the event's trace where no provider is installed", func(t *testing.T) {
		t.Parallel()
		var got string
		deliver(t, func(ctx context.Context, _ *event.Event) error {
			got = event.TraceParent(ctx)
			if trace.SpanContextFromContext(ctx).IsValid() {
				return errors.New("there is a span")
			}
			return nil
		}, tracing.WithTracerProvider(nil))
		if got != producer {
			t.Errorf("%q", got)
		}
	})
}

func TestContextWithTracerProvider(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	provider, recorder := recording(t)
	ctx := tracing.ContextWithTracerProvider(t.Context(), provider)
	if _, err := outbox.Publish(ctx, db.Pool, outbox.Message{AggregateType: "order", AggregateID: uuid.New(), EventType: "Placed"}); err != nil {
		t.Fatal(err)
	}
	spansNamed(t, recorder, 1, "publish Placed")
}

// BenchmarkMiddleware measures what a delivery costs without a handler.
func BenchmarkMiddleware(b *testing.B) {
	e := &event.Event{ID: 7, PublicID: uuid.New(), Type: "Placed", Attempt: 1, Metadata: event.Metadata{TraceParent: producer}}
	nothing := dispatch.HandlerFunc(func(context.Context, *event.Event) error { return nil })
	for name, provider := range map[string]trace.TracerProvider{"no provider": nil, "SDK": sdktrace.NewTracerProvider()} {
		b.Run(name, func(b *testing.B) {
			h := tracing.Middleware(tracing.WithTracerProvider(provider))(nothing)
			b.ReportAllocs()
			for b.Loop() {
				if err := h.Handle(b.Context(), e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
