package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed-9a365b49/outbox/event"
)

// Handler consumes one event. An event is delivered at least once, so Handle must be
// idempotent; deduplicate on [event.Event.PublicID] where it matters.
//
// The context is cancelled at the subscriber's timeout and at shutdown, and it carries the
// event ([event.FromContext]). The worker never abandons a handler that ignores its context:
// see [Dispatcher.Deliver]. All subscribers of an event get the same *Event, at the same
// time: read it, do not change it.
type Handler interface {
	Handle(ctx context.Context, e *event.Event) error
}

// HandlerFunc lets a function be a [Handler].
type HandlerFunc func(ctx context.Context, e *event.Event) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, e *event.Event) error { return f(ctx, e) }

// Middleware wraps every subscriber's handler: logging, tracing, metrics. It runs inside the
// subscriber's timeout and panic recovery. It is called once for each subscriber, when the
// first event is dispatched, and not for each event. [SubscriberOf] tells it whose handler next is.
type Middleware func(next Handler) Handler

// SubscriberOf returns the name of the subscriber whose handler a [Middleware] has been given, "" for any other handler.
func SubscriberOf(next Handler) string {
	n, _ := next.(named)
	return n.subscriber
}

// named is a handler as middleware gets it. The name comes with the handler and not with the context, since that would
// cost an allocation for each call.
type named struct {
	Handler
	subscriber string
}

// ErrDecode is wrapped by the error of a [Typed] handler whose event does not decode.
var ErrDecode = errors.New("event data does not decode")

// Typed returns a handler that decodes the event's data as JSON into a T before it calls fn.
// Fields that T does not have are ignored, so a producer may add some.
//
// Data that does not decode is an ordinary error wrapping [ErrDecode], not a permanent one:
// during a rolling deploy an old worker meets new events, and the next attempt is made by a
// new one. A permanent error would turn those events into dead letters, and let the later
// events of their aggregates overtake them. The price is that an event that never decodes
// holds back its aggregate until its attempts are used up. A middleware that returns
// Permanent(err) where errors.Is(err, ErrDecode) chooses the other way.
func Typed[T any](fn func(ctx context.Context, e *event.Event, data T) error) Handler {
	if fn == nil {
		return HandlerFunc(nil) // so that Subscribe refuses it
	}
	return HandlerFunc(func(ctx context.Context, e *event.Event) error {
		var data T
		if err := json.Unmarshal(e.Data, &data); err != nil {
			return fmt.Errorf("%w into %T (version %d): %w", ErrDecode, data, e.Version, err)
		}
		return fn(ctx, e, data)
	})
}
