// Package dispatch decides the outcome of one event: it calls the event's subscribers and
// turns what they return into published, retry, dead or untouched.
//
// The way of an event through this package, a file a step:
//
//	dispatch.go   Deliver: which subscribers are left → call them → combine → log
//	registry.go   which subscribers an event type has, with middleware applied
//	call.go       one handler call: its timeout, its panics, what its error means
//	outcome.go    what the results of all subscribers make of the event
//	retry.go      when the next attempt is due, or that there is none
//
// What a handler returns decides ([Permanent], [RetryAfter], [RetryPolicy]):
//
//	nil                       delivered
//	an error                  retry, after a delay that the RetryPolicy chooses
//	a panic                   the same; the stack goes to the log once
//	no return within Timeout  its context is cancelled; an error returned then counts as a timeout
//	Permanent(err)            no further attempt for this subscriber (also backoff.Permanent)
//	RetryAfter(d, err)        retry after d
//	an error after ctx (the one given to Deliver) was cancelled: nothing is recorded
//
// The package knows no SQL and keeps no state between events: the caller hands in what
// earlier attempts achieved ([Delivery]) and stores what this one did ([Outcome]).
package dispatch
