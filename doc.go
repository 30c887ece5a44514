// Package outbox is a transactional outbox for PostgreSQL: a service writes its rows and an event in one
// transaction, and after the commit a worker delivers the event to handlers, within about a millisecond, at least
// once, in order per aggregate.
//
// [Publish] writes an event inside the caller's transaction. [NewWorker] makes a worker that delivers events to the
// handlers subscribed to it; embed it in a service, or run it as the binary cmd/outbox. [Migrate] makes the schema.
//
// Delivery is at least once, so handlers must be idempotent: every event has a stable public id
// ([event.PublicID]) to deduplicate on.
package outbox
