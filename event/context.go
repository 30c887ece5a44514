package event

import (
	"context"

	"github.com/google/uuid"
)

type contextKey struct{}

// links is what an event published with the context is linked to. It is one value, so that
// the innermost With… call wins whatever it sets: an id that the worker's own context
// carries must not shadow that of the event being handled. As long as no With… call has set anything, the context
// carries the event itself, which costs a delivery less.
type links struct {
	event       *Event
	correlation string
	causation   uuid.UUID
	traceParent string
	traceState  string
}

func linksOf(ctx context.Context) links {
	switch v := ctx.Value(contextKey{}).(type) {
	case *Event:
		return links{
			event: v, correlation: v.Metadata.CorrelationID, causation: v.PublicID,
			traceParent: v.Metadata.TraceParent, traceState: v.Metadata.TraceState,
		}
	case links:
		return v
	}
	return links{}
}

// NewContext returns a context that carries the event being handled. The worker does
// this for every handler, so that what the handler publishes names its cause.
// It replaces what earlier With… calls set. A nil event carries nothing.
func NewContext(ctx context.Context, e *Event) context.Context {
	if e == nil {
		return context.WithValue(ctx, contextKey{}, links{})
	}
	return context.WithValue(ctx, contextKey{}, e)
}

// FromContext returns the event being handled, if the context comes from a handler.
func FromContext(ctx context.Context) (*Event, bool) {
	e := linksOf(ctx).event
	return e, e != nil
}

// WithCorrelationID returns a context whose published events carry id as
// metadata.correlation_id: the workflow or request that they belong to. "" takes it away.
func WithCorrelationID(ctx context.Context, id string) context.Context {
	l := linksOf(ctx)
	l.correlation = id
	return context.WithValue(ctx, contextKey{}, l)
}

// CorrelationID returns the correlation id for events published with ctx: the one set by
// [WithCorrelationID], else that of the event being handled, else "".
func CorrelationID(ctx context.Context) string {
	return linksOf(ctx).correlation
}

// WithCausationID returns a context whose published events carry id as
// metadata.causation_id, for causes that are not events of this outbox. The nil UUID takes it away.
func WithCausationID(ctx context.Context, id uuid.UUID) context.Context {
	l := linksOf(ctx)
	l.causation = id
	return context.WithValue(ctx, contextKey{}, l)
}

// CausationID returns the causation id for events published with ctx: the one set by
// [WithCausationID], else the public id of the event being handled, else "".
func CausationID(ctx context.Context) string {
	id := linksOf(ctx).causation
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}

// WithTraceParent returns a context whose published events carry traceParent (W3C Trace
// Context) as metadata.traceparent, unless the context has a span of OpenTelemetry, which wins. "" takes it away.
func WithTraceParent(ctx context.Context, traceParent string) context.Context {
	l := linksOf(ctx)
	l.traceParent, l.traceState = traceParent, ""
	return context.WithValue(ctx, contextKey{}, l)
}

// TraceParent returns the trace context for events published with ctx where it has no span: the one set by
// [WithTraceParent], else that of the event being handled, so that a chain of events stays
// one trace, else "".
func TraceParent(ctx context.Context) string {
	return linksOf(ctx).traceParent
}

// TraceState returns what belongs to [TraceParent]: the tracestate of the event being handled, unless
// WithTraceParent has set another trace context.
func TraceState(ctx context.Context) string {
	return linksOf(ctx).traceState
}
