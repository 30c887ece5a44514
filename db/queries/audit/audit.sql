-- Copies of published events in audit.events. Index: outbox_pkey and events_pkey throughout; arrays come from a (SELECT) for the
-- reason that db/queries/events/settle.sql gives.

-- name: Record :execrows
-- Copies events that are published; what has a copy is left alone.
INSERT INTO audit.events (outbox_id, aggregate_type, aggregate_id, event_type, payload, occurred_at, published_at, retry_count, last_error, next_retry_at)
SELECT o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.occurred_at, o.published_at, o.retry_count, o.last_error, o.next_retry_at
FROM events.outbox o
WHERE o.id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[]) AND o.published_at IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: Recorded :many
-- Those of the events that have a copy. The event type is compared too: what has the key of another event has no copy.
SELECT o.id
FROM events.outbox o
JOIN audit.events a ON a.outbox_id = o.id AND a.occurred_at = o.occurred_at AND a.event_type = o.event_type
WHERE o.id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[])
ORDER BY o.id;

-- name: NextPublished :one
-- The next rows after an id: how many there are, the last id, and which of them are published without a copy.
WITH range AS MATERIALIZED (
    SELECT o.id, o.occurred_at, o.event_type, o.published_at FROM events.outbox o
    WHERE o.id > sqlc.arg(after)::bigint
    ORDER BY o.id
    LIMIT sqlc.arg(page_size)::bigint
)
SELECT count(*) AS scanned,
       COALESCE(max(r.id), 0)::bigint AS last_id,
       ARRAY(SELECT m.id FROM range m
             WHERE m.published_at IS NOT NULL AND NOT EXISTS (
                 SELECT FROM audit.events a WHERE a.outbox_id = m.id AND a.occurred_at = m.occurred_at AND a.event_type = m.event_type)
             ORDER BY m.id)::bigint[] AS missing
FROM range r;

-- name: Facts :one
-- Whether there is a schema audit and a table audit.events, whether that was made here, and what the current role may do with it.
SELECT (n.oid IS NOT NULL)::boolean AS schema_there,
       (c.oid IS NOT NULL)::boolean AS there,
       quote_ident(current_user)::text AS role,
       COALESCE(obj_description(c.oid, 'pg_class') = 'made by outbox audit create', false)::boolean AS ours,
       COALESCE(has_schema_privilege(c.relnamespace, 'USAGE'), false)::boolean AS may_use,
       COALESCE(has_table_privilege(c.oid, 'SELECT'), false)::boolean AS may_select,
       COALESCE(has_table_privilege(c.oid, 'INSERT'), false)::boolean AS may_insert
FROM (SELECT) one
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'audit'
LEFT JOIN pg_catalog.pg_class c ON c.relname = 'events' AND c.relnamespace = n.oid;

-- name: LockCreation :exec
-- Creators wait for one another.
SELECT pg_advisory_xact_lock(sqlc.arg(lock_key)::bigint);
