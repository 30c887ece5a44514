// Package tracing has a worker trace its deliveries with OpenTelemetry:
//
//	worker.Use(tracing.Middleware())
//
// A delivery is a span of kind CONSUMER, "process <event type>", for each subscriber and attempt. It is the root of a trace of its
// own and links to the span that published the event, whose context the envelope keeps (metadata.traceparent): a retry can come days
// later, and one event can have many deliveries. What a handler does with its context, publishing among it, belongs to the delivery's
// trace. Publishing needs no set-up: see outbox.Publish.
//
// The spans follow the conventions for messaging, as of their version 1.43:
// https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
//
//	messaging.system                   "outbox"
//	messaging.operation.name, .type    "process"
//	messaging.destination.name         the event type, which is what handlers subscribe to
//	messaging.consumer.group.name      the subscriber
//	messaging.message.id               the event's public id
//	messaging.message.conversation_id  metadata.correlation_id, where there is one
//	outbox.event_id                    the row's id; also on the span of Publish, which does not know the public id
//	outbox.aggregate_type              and never the aggregate's id, nor any data
//	outbox.attempt                     1 for the first delivery
//	error.type                         of a failed one: the type of the error, "panic", or "goexit"
//
// Only the API of OpenTelemetry is used: the SDK, and with it where spans go, is the program's choice.
package tracing

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/spans"
)

// Option changes what [Middleware] does.
type Option func(*options)

type options struct{ provider trace.TracerProvider }

// WithTracerProvider sets where spans come from. Defaults to the global provider, otel.GetTracerProvider(); so does nil.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(o *options) { o.provider = provider }
}

// ContextWithTracerProvider returns a context whose published events are traced by provider, for programs that have no global one.
// Inside a handler it is not needed: there the provider of the delivery's span is used.
func ContextWithTracerProvider(ctx context.Context, provider trace.TracerProvider) context.Context {
	return spans.WithProvider(ctx, provider)
}

// Middleware returns a middleware for outbox.Worker.Use that makes each delivery a span. Add it first, so that the spans cover
// what other middleware does. A malformed traceparent costs the link and nothing else.
func Middleware(opts ...Option) dispatch.Middleware {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.provider == nil {
		o.provider = otel.GetTracerProvider()
	}
	tracer := spans.NewTracer(o.provider)
	return func(next dispatch.Handler) dispatch.Handler {
		return &handler{next: next, subscriber: dispatch.SubscriberOf(next), tracer: tracer}
	}
}

// handler is a subscriber's handler within spans.
type handler struct {
	next       dispatch.Handler
	subscriber string
	tracer     trace.Tracer
}

// Handle calls the next handler within a span, which ends also where that handler panics or ends its goroutine.
func (h *handler) Handle(ctx context.Context, e *event.Event) (err error) {
	ctx, span := h.start(ctx, e)
	returned := false
	defer func() {
		defer func() { span.End() }() // in a function of its own, or else the SDK would see the panic too and record it again
		if returned {
			if err != nil {
				spans.Fail(span, errorType(err), fmt.Sprint(err))
			}
			return
		}
		panicked := recover() // nil: runtime.Goexit, which nothing stops
		recordCrash(span, panicked)
		if panicked != nil {
			panic(panicked) // the stack of the first one is still there, for the dispatcher to log
		}
	}()
	err = h.next.Handle(ctx, e)
	returned = true
	return err
}

func (h *handler) start(ctx context.Context, e *event.Event) (context.Context, trace.Span) {
	attributes := append(make([]attribute.KeyValue, 0, 10),
		spans.System,
		semconv.MessagingOperationName("process"),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(e.Type),
		semconv.MessagingMessageID(e.PublicID.String()),
		spans.EventID.Int64(e.ID),
		spans.AggregateType.String(e.AggregateType),
		spans.Attempt.Int(e.Attempt),
	)
	if h.subscriber != "" {
		attributes = append(attributes, semconv.MessagingConsumerGroupName(h.subscriber))
	}
	if id := e.Metadata.CorrelationID; id != "" {
		attributes = append(attributes, semconv.MessagingMessageConversationID(id))
	}
	opts := append(make([]trace.SpanStartOption, 0, 4),
		trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributes...))
	if publisher := spans.Parse(e.Metadata.TraceParent, e.Metadata.TraceState); publisher.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: publisher}))
	}
	return h.tracer.Start(ctx, "process "+e.Type, opts...)
}

func recordCrash(span trace.Span, panicked any) {
	if panicked == nil {
		spans.Fail(span, "goexit", "handler ended its goroutine (runtime.Goexit)")
		return
	}
	spans.Fail(span, "panic", fmt.Sprintf("panic: %v", panicked))
}

// errorType is the type of the error that fmt.Errorf has wrapped, if it has.
func errorType(err error) string { return semconv.ErrorType(err).Value.AsString() }
