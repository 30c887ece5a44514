package outbox

import (
	"context"
	"errors"
	"slices"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/spans"
)

// What the span of a publish call starts with. It is made once, since most calls have nobody to trace them; what else there is
// to say is said once a span records. A sampler sees the event type in the name.
var (
	sending = trace.WithAttributes(spans.System, semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend)
	asOwn   = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), sending}
	// No producer, since no delivery leads to it: all messages gave a trace context of their own.
	asOther = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), sending}
)

// startSending begins the span of a publish call, the "send" of the messaging conventions
// (https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/), and gives its context to the rows that have none
// of their own. Without a tracer provider they get that of the context's span. A batch is one span, whose context all of its rows share.
//
// It tells of the INSERT: whether the transaction commits is not known here.
func startSending(ctx context.Context, rows []row, batch bool) (context.Context, trace.Span) {
	tracer := spans.Tracer(ctx)
	inherited := trace.SpanContext{}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		if inherited = spans.Parse(event.TraceParent(ctx), event.TraceState(ctx)); inherited.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, inherited)
		}
	}
	name, options := "publish", asOther
	eventType := commonType(rows)
	if eventType != "" {
		name = "publish " + eventType
	}
	if slices.ContainsFunc(rows, func(r row) bool { return !r.traced }) {
		options = asOwn
	}
	ctx, span := tracer.Start(ctx, name, options...)
	if span.IsRecording() {
		describeSending(span, rows, eventType, batch)
	}
	sc := span.SpanContext()
	if !sc.IsValid() || sc.Equal(inherited) { // the rows have the inherited one, letter by letter
		return ctx, span
	}
	traceParent, traceState := spans.Format(sc)
	for i := range rows {
		if r := &rows[i]; !r.traced {
			r.envelope.Metadata.TraceParent, r.envelope.Metadata.TraceState = traceParent, traceState
		}
	}
	return ctx, span
}

// describeSending adds what is to be said of these rows. The span links to the trace contexts that messages gave themselves.
func describeSending(span trace.Span, rows []row, eventType string, batch bool) {
	if eventType != "" {
		span.SetAttributes(semconv.MessagingDestinationName(eventType))
	}
	if batch {
		span.SetAttributes(semconv.MessagingBatchMessageCount(len(rows)))
	}
	for i := range rows {
		if r := &rows[i]; r.traced {
			span.AddLink(trace.Link{SpanContext: spans.Parse(r.envelope.Metadata.TraceParent, "")}) // none of a malformed one
		}
	}
}

// commonType returns the event type that all rows have, "" where they differ.
func commonType(rows []row) string {
	for i := range rows {
		if rows[i].eventType != rows[0].eventType {
			return ""
		}
	}
	return rows[0].eventType
}

// sendingFailed records err on the span and returns it.
func sendingFailed(span trace.Span, err error) error {
	if !span.IsRecording() {
		return err
	}
	errorType := semconv.ErrorType(err).Value.AsString()
	if state := (interface{ SQLState() string })(nil); errors.As(err, &state) {
		errorType = state.SQLState()
	}
	spans.Fail(span, errorType, err.Error())
	return err
}
