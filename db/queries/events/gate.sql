-- The gate: while it is closed publishers notify, while it is open they need not. See migration 00009_gate.sql.

-- name: CloseGate :one
-- Waits up to 200 ms for the publishers that are silent to end; false: they have not.
SELECT events.outbox_close_gate()::boolean AS closed;

-- name: OpenGate :one
SELECT pg_advisory_unlock(sqlc.arg(lock_key)::int, 'events.outbox'::regclass::oid::int);
