package event_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/event"
)

func TestContext(t *testing.T) {
	t.Parallel()
	cause := uuid.MustParse("11111111-1111-5111-8111-111111111111")
	other := uuid.MustParse("22222222-2222-4222-8222-222222222222")
	handled := &event.Event{
		ID: 7, PublicID: cause,
		Metadata: event.Metadata{CorrelationID: "workflow", CausationID: other.String(), TraceParent: "trace", TraceState: "a=1"},
	}
	type links struct{ correlation, causation, trace, state string }
	tests := map[string]struct {
		ctx  func(context.Context) context.Context
		want links
	}{
		"outside a handler nothing is linked": {
			func(ctx context.Context) context.Context { return ctx },
			links{},
		},
		"in a handler the handled event is the cause, and its workflow and trace go on": {
			func(ctx context.Context) context.Context { return event.NewContext(ctx, handled) },
			links{"workflow", cause.String(), "trace", "a=1"},
		},
		"ids can be set": {
			func(ctx context.Context) context.Context {
				return event.WithTraceParent(event.WithCausationID(event.WithCorrelationID(ctx, "request"), other), "span")
			},
			links{"request", other.String(), "span", ""},
		},
		"a handler can set its own": {
			func(ctx context.Context) context.Context {
				return event.WithTraceParent(event.WithCausationID(event.WithCorrelationID(event.NewContext(ctx, handled), "request"), other), "span")
			},
			links{"request", other.String(), "span", ""},
		},
		"a handler can set one and keep the others": {
			func(ctx context.Context) context.Context {
				return event.WithCorrelationID(event.NewContext(ctx, handled), "request")
			},
			links{"request", cause.String(), "trace", "a=1"},
		},
		"a handler can take them away": {
			func(ctx context.Context) context.Context {
				return event.WithTraceParent(event.WithCausationID(event.WithCorrelationID(event.NewContext(ctx, handled), ""), uuid.Nil), "")
			},
			links{},
		},
		"what the worker's own context carries does not reach its handlers": {
			func(ctx context.Context) context.Context {
				return event.NewContext(event.WithCausationID(event.WithCorrelationID(ctx, "the process"), other), handled)
			},
			links{"workflow", cause.String(), "trace", "a=1"},
		},
		"an event without metadata is still a cause": {
			func(ctx context.Context) context.Context {
				return event.NewContext(event.WithCorrelationID(ctx, "the process"), &event.Event{PublicID: cause})
			},
			links{"", cause.String(), "", ""},
		},
		"an event without a public id is no cause": {
			func(ctx context.Context) context.Context { return event.NewContext(ctx, &event.Event{ID: 1}) },
			links{},
		},
		"no event carries nothing": {
			func(ctx context.Context) context.Context {
				return event.NewContext(event.NewContext(ctx, handled), nil)
			},
			links{},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := tt.ctx(t.Context())
			got := links{event.CorrelationID(ctx), event.CausationID(ctx), event.TraceParent(ctx), event.TraceState(ctx)}
			if got != tt.want {
				t.Fatalf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestFromContext(t *testing.T) {
	t.Parallel()
	if e, ok := event.FromContext(t.Context()); ok || e != nil {
		t.Fatalf("outside a handler: got %v, %t", e, ok)
	}
	if e, ok := event.FromContext(event.NewContext(t.Context(), nil)); ok || e != nil {
		t.Fatalf("without an event: got %v, %t", e, ok)
	}
	e := &event.Event{ID: 7}
	ctx := event.WithCorrelationID(event.NewContext(t.Context(), e), "request")
	if got, ok := event.FromContext(ctx); !ok || got != e {
		t.Fatalf("in a handler: got %v, %t", got, ok)
	}
}
