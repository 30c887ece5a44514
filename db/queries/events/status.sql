-- What `outbox status` shows. Every scan is bounded by a number of rows, so that it answers at once however long the
-- backlog and however many events were ever published; a count that reached its bound is "at least".

-- name: TuneTransaction :one
-- Settings of one transaction (a pooler hands the session to somebody else): the index that each query names is read
-- whatever the statistics say. TuneSession's, without the generic plans, since each query runs once.
SELECT set_config('enable_seqscan', 'off', true) AS enable_seqscan,
       set_config('enable_bitmapscan', 'off', true) AS enable_bitmapscan,
       set_config('enable_sort', 'off', true) AS enable_sort,
       set_config('jit', 'off', true) AS jit;

-- name: SchemaVersion :one
SELECT events.outbox_schema_version()::int AS version;

-- name: CountUnfailed :one
-- The events that have never failed and are not published, among the newest unpublished ones. Index:
-- outbox_unpublished_idx, backward.
SELECT count(*) AS scanned,
       count(*) FILTER (WHERE w.next_retry_at IS NULL) AS pending
FROM (
    SELECT o.next_retry_at
    FROM events.outbox o
    WHERE o.published_at IS NULL
    ORDER BY o.id DESC
    LIMIT sqlc.arg(bound)::bigint
) w;

-- name: CountFailed :one
-- The events in retry, those of them that are due, and the dead letters. The order asks for the one index that has it, where
-- the planner might prefer to filter all unpublished events; an = would make the order void. Index: outbox_retry_due_idx.
SELECT (SELECT count(*) FROM (
            SELECT FROM events.outbox d
            WHERE d.published_at IS NULL AND d.next_retry_at <= now()
            ORDER BY d.next_retry_at
            LIMIT sqlc.arg(bound)::bigint) due) AS due,
       (SELECT count(*) FROM (
            SELECT FROM events.outbox r
            WHERE r.published_at IS NULL AND r.next_retry_at < 'infinity'
            ORDER BY r.next_retry_at
            LIMIT sqlc.arg(bound)::bigint) retrying) AS retrying,
       (SELECT count(*) FROM (
            SELECT FROM events.outbox x
            WHERE x.published_at IS NULL AND x.next_retry_at >= 'infinity'
            ORDER BY x.next_retry_at
            LIMIT sqlc.arg(bound)::bigint) dead) AS dead;

-- name: OldestUnfailed :one
-- The first event that has never failed and is not published, among the oldest unpublished ones; not one whose
-- occurred_at is infinity, which has no age. Index: outbox_unpublished_idx.
SELECT w.id, extract(epoch FROM now() - w.occurred_at)::float8 AS age_s
FROM (
    SELECT o.id, o.occurred_at, o.next_retry_at
    FROM events.outbox o
    WHERE o.published_at IS NULL
    ORDER BY o.id
    LIMIT sqlc.arg(bound)::bigint
) w
WHERE w.next_retry_at IS NULL AND isfinite(w.occurred_at)
ORDER BY w.id
LIMIT 1;

-- name: CountPublished :one
-- The events published of late among the newest ids below one. Nothing indexes published_at, but events are
-- published in about the order of their ids: where an event from before the window was met, those
-- below it hardly matter. Index: outbox_pkey, backward.
SELECT count(*) AS scanned,
       COALESCE(min(w.id), 0)::bigint AS lowest,
       count(*) FILTER (WHERE w.published_at > now() - interval '1 minute') AS last_minute,
       count(*) FILTER (WHERE w.published_at <= now() - interval '1 minute') AS before_minute,
       count(*) FILTER (WHERE w.published_at > now() - interval '1 hour') AS last_hour,
       count(*) FILTER (WHERE w.published_at <= now() - interval '1 hour') AS before_hour
FROM (
    SELECT o.id, o.published_at
    FROM events.outbox o
    WHERE o.id < sqlc.arg(below)::bigint
    ORDER BY o.id DESC
    LIMIT sqlc.arg(bound)::bigint
) w;

-- name: WorkerSessions :one
-- The sessions of workers: those that own the outbox or try to, and those that listen.
SELECT count(*) FILTER (WHERE starts_with(a.application_name, sqlc.arg(owner_prefix)::text)) AS owners_and_standbys,
       count(*) FILTER (WHERE starts_with(a.application_name, sqlc.arg(listener_prefix)::text)) AS listeners
FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database();

-- name: ServerState :one
-- The server's clock, and how full its queue of notifications is, from 0 to 1.
SELECT clock_timestamp()::timestamptz AS now, pg_notification_queue_usage()::float8 AS notify_queue;
