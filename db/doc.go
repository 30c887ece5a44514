// Package db holds the queries of the outbox: the SQL in queries/events, and the code that sqlc generates
// from it in eventsdb.
package db
