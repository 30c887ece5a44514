package sink

import (
	"context"

	"github.com/seed-9a365b49/outbox/event"
)

// Discard takes every event and does nothing with it: for measuring the worker alone.
type Discard struct{}

// Handle returns nil.
func (Discard) Handle(context.Context, *event.Event) error { return nil }

// String returns "discard".
func (Discard) String() string { return "discard" }
