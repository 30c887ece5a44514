// Package sink holds ready-made subscribers: what `outbox run --sink …` hands events to,
// and what an embedding service can subscribe instead of a handler of its own.
//
// A sink is a [dispatch.Handler]. It writes events in the format of package cloudevent.
// Sinks that need a broker's client live in packages of their own, so that only those who
// use a broker link its client.
package sink
