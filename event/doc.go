// Package event holds the plain types that travel through the outbox: the event
// that a handler receives, the envelope that is stored in events.outbox.payload,
// and the context values that link one event to the next.
//
// It imports nothing else of this module, so that a handler can be written and
// tested without a worker or a database.
package event
