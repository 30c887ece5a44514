package dispatch

import (
	"time"

	"github.com/seed-9a365b49/outbox/event"
)

// Result is what one handler call came to.
type Result string

// The results of a [Call].
const (
	ResultDelivered   Result = "delivered"   // nil was returned
	ResultFailed      Result = "failed"      // it is tried again, if the event is
	ResultPermanent   Result = "permanent"   // it is not
	ResultInterrupted Result = "interrupted" // by a shutdown: it does not count
	ResultNoHandler   Result = "no_handler"  // nobody subscribes to the event type; Subscriber is empty
)

// Call is one handler call that has ended.
type Call struct {
	Event      *event.Event
	Subscriber string
	Result     Result
	Took       time.Duration
}

// result is the verdict's name for observers.
func (v verdict) result() Result {
	switch v {
	case delivered:
		return ResultDelivered
	case permanent:
		return ResultPermanent
	case interrupted:
		return ResultInterrupted
	default:
		return ResultFailed
	}
}
