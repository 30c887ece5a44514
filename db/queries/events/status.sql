-- What `outbox status` shows. Every scan is bounded by a number of rows, so that it answers at once however long the
-- backlog and however many events were ever published; a count that reached its bound is "at least".

-- name: TuneTransaction :one
-- Settings of one transaction (a pooler hands the session to somebody else): the index that each query names is read
-- whatever the statistics say. TuneSession's, without the generic plans, since each query runs once. Joins merge or hash: to compare
-- each of one side with each of the other would be without bounds where statistics are old.
SELECT set_config('enable_seqscan', 'off', true) AS enable_seqscan,
       set_config('enable_bitmapscan', 'off', true) AS enable_bitmapscan,
       set_config('enable_sort', 'off', true) AS enable_sort,
       set_config('enable_nestloop', 'off', true) AS enable_nestloop,
       set_config('jit', 'off', true) AS jit;

-- name: SchemaVersion :one
SELECT events.outbox_schema_version()::int AS version;

-- name: CountUnfailed :one
-- The events that have never failed and are not published, among the newest unpublished ones. Dead letters, which can lie
-- anywhere in a large table, are told by their index, so that none of their pages is read; of the others the row says it. Indexes:
-- outbox_unpublished_idx and outbox_dead_idx, backward; outbox_pkey.
SELECT count(*) AS scanned,
       count(CASE WHEN d.id IS NULL THEN
           (SELECT true FROM events.outbox e WHERE e.id = w.id AND e.next_retry_at IS NULL) END) AS pending
FROM (
    SELECT o.id
    FROM events.outbox o
    WHERE o.published_at IS NULL
    ORDER BY o.id DESC
    LIMIT sqlc.arg(bound)::bigint
) w
LEFT JOIN (
    SELECT x.id
    FROM events.outbox x
    WHERE x.published_at IS NULL AND x.next_retry_at = 'infinity'
    ORDER BY x.id DESC
    LIMIT sqlc.arg(bound)::bigint
) d ON d.id = w.id;

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
-- occurred_at is infinity, which has no age. As CountUnfailed, forward.
SELECT f.id, (SELECT extract(epoch FROM now() - e.occurred_at)::float8 FROM events.outbox e WHERE e.id = f.id)::float8 AS age_s
FROM (
    SELECT w.id
    FROM (
        SELECT o.id
        FROM events.outbox o
        WHERE o.published_at IS NULL
        ORDER BY o.id
        LIMIT sqlc.arg(bound)::bigint
    ) w
    LEFT JOIN (
        SELECT x.id
        FROM events.outbox x
        WHERE x.published_at IS NULL AND x.next_retry_at = 'infinity'
        ORDER BY x.id
        LIMIT sqlc.arg(bound)::bigint
    ) d ON d.id = w.id
    WHERE CASE WHEN d.id IS NULL THEN
        (SELECT e.next_retry_at IS NULL AND isfinite(e.occurred_at) FROM events.outbox e WHERE e.id = w.id) END
    ORDER BY w.id
    LIMIT 1
) f;

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
