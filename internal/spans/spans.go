// Package spans is what the spans of publishing and of delivering have in common: where they come from, how they fail, and
// the form in which an envelope keeps their context.
package spans

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// Scope is the instrumentation scope of all spans.
const Scope = "github.com/seed-9a365b49/outbox"

// System is messaging.system. The conventions know no outbox, and allow a name of one's own.
var System = semconv.MessagingSystemKey.String("outbox")

// Attributes of an outbox that the conventions have no name for.
const (
	EventID       = attribute.Key("outbox.event_id") // the row's id
	AggregateType = attribute.Key("outbox.aggregate_type")
	Attempt       = attribute.Key("outbox.attempt")
)

var tracerOptions = []trace.TracerOption{trace.WithSchemaURL(semconv.SchemaURL)}

// NewTracer returns the tracer of a provider.
func NewTracer(provider trace.TracerProvider) trace.Tracer {
	return provider.Tracer(Scope, tracerOptions...)
}

type providerKey struct{}

// WithProvider returns a context whose published events are traced by provider.
func WithProvider(ctx context.Context, provider trace.TracerProvider) context.Context {
	return context.WithValue(ctx, providerKey{}, provider)
}

// Tracer returns the tracer for what is done with ctx: of the provider that the context was given, else of the one that
// made the context's span, so that a trace stays with it, else of the global one. A remote span was made by none.
func Tracer(ctx context.Context) trace.Tracer {
	if provider, ok := ctx.Value(providerKey{}).(trace.TracerProvider); ok {
		return NewTracer(provider)
	}
	span := trace.SpanFromContext(ctx)
	if sc := span.SpanContext(); sc.IsValid() && !sc.IsRemote() {
		return NewTracer(span.TracerProvider())
	}
	return NewTracer(otel.GetTracerProvider())
}

// Fail marks a span as failed. The text is cut and cleaned as last_error is: of invalid UTF-8 an exporter would refuse the whole batch.
func Fail(span trace.Span, errorType, text string) {
	if !span.IsRecording() {
		return
	}
	text = dispatch.CleanError(text)
	span.SetStatus(codes.Error, text)
	span.SetAttributes(semconv.ErrorTypeKey.String(errorType))
	span.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(semconv.ExceptionType(errorType), semconv.ExceptionMessage(text)))
}

// Parse returns the span context of an envelope's traceparent and tracestate. It is invalid where traceparent
// is malformed; a malformed tracestate is left out (W3C Trace Context, sections 3.2.2 and 3.3.1).
func Parse(traceParent, traceState string) trace.SpanContext {
	if traceParent == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), &w3c{traceParent, traceState}))
}

// Format is the inverse of [Parse]; of an invalid span context it makes nothing.
func Format(sc trace.SpanContext) (traceParent, traceState string) {
	var c w3c
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), &c)
	return c.parent, c.state
}

// w3c carries the two headers of W3C Trace Context.
type w3c struct{ parent, state string }

func (c *w3c) Get(key string) string {
	switch key {
	case "traceparent":
		return c.parent
	case "tracestate":
		return c.state
	}
	return ""
}

func (c *w3c) Set(key, value string) {
	switch key {
	case "traceparent":
		c.parent = value
	case "tracestate":
		c.state = value
	}
}

func (*w3c) Keys() []string { return []string{"traceparent", "tracestate"} }
