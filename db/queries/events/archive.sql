-- Retention: deleting what was published long ago, without reading the table for it. Nothing indexes published_at, but
-- events are published in about the order of their ids, so the archive walks the primary key from its start.

-- name: TryArchive :one
-- Whether this transaction may archive: not while another one does, unless it only looks. The limits, and UTC for the times of what is kept, are this
-- transaction's own.
SELECT (set_config('statement_timeout', sqlc.arg(timeout_ms)::bigint::text, true) IS NOT NULL
    AND set_config('TimeZone', 'UTC', true) IS NOT NULL
    AND set_config('lock_timeout', (sqlc.arg(timeout_ms)::bigint / 2)::text, true) IS NOT NULL
    AND CASE WHEN sqlc.arg(only_look)::boolean THEN true
             ELSE pg_try_advisory_xact_lock(sqlc.arg(lock_key)::int, 'events.outbox'::regclass::oid::bigint::bit(32)::int) END)::boolean AS may;

-- name: ArchiveRange :one
-- The next rows after an id: how many there are, the last id, whether one was published too lately (a time that has not come says nothing
-- about when), and those that have expired, locked unless it only looks; what somebody else has locked is left out. Index: outbox_pkey.
WITH range AS MATERIALIZED (
    SELECT o.id, o.published_at, o.published_at < now() - sqlc.arg(retention_us)::bigint * interval '1 microsecond' AS expired
    FROM events.outbox o
    WHERE o.id > sqlc.arg(after)::bigint
    ORDER BY o.id
    LIMIT sqlc.arg(page_size)::bigint
), locked AS (
    SELECT o.id FROM events.outbox o
    WHERE o.id = ANY (ARRAY(SELECT r.id FROM range r WHERE r.expired))
    ORDER BY o.id
    FOR UPDATE SKIP LOCKED
)
SELECT count(*) AS scanned,
       COALESCE(max(r.id), 0)::bigint AS last_id,
       COALESCE(bool_or(NOT r.expired AND r.published_at <= now()), false)::boolean AS young,
       COALESCE(bool_or(r.expired), false)::boolean AS old,
       (CASE WHEN sqlc.arg(only_look)::boolean THEN ARRAY(SELECT e.id FROM range e WHERE e.expired ORDER BY e.id)
             ELSE ARRAY(SELECT l.id FROM locked l) END)::bigint[] AS expired
FROM range r;

-- name: DeletePublished :execrows
-- Deletes published events. Index: outbox_pkey.
DELETE FROM events.outbox
WHERE id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[]) AND published_at IS NOT NULL;
