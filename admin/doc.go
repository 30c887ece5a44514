// Package admin is what operators do with an outbox: look at its events, and redrive or discard dead letters.
//
// A dead letter is an event that is not published and is not retried any more. It stays until somebody acts: redrives it, which
// gives it one more attempt, or discards it. The command line does both with this package (outbox list, outbox dead); a service can
// do so with its own.
//
// Every function works on a pool, a connection, or within a transaction of the caller's. The role needs the privileges of
// the operator (docs/roles.md).
package admin
