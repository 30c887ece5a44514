-- The outcomes of events, many at a time. Index: outbox_pkey throughout. published_at IS NULL and the fetched
-- retry_count are guards: a settle whose commit is unknown can be repeated. The first is written with COALESCE so that
-- no partial index on published_at IS NULL matches it: where statistics are old, the planner takes such an index
-- for nearly empty and reads all of it.

-- name: MarkPublishedBatch :exec
UPDATE events.outbox
SET published_at = now()
WHERE id = ANY (sqlc.arg(ids)::bigint[]) AND COALESCE(published_at, 'infinity') = 'infinity';

-- name: MarkRetryBatch :many
-- Delays are in microseconds.
UPDATE events.outbox o
SET retry_count = o.retry_count + 1,
    last_error = r.last_error,
    next_retry_at = now() + r.delay_us * interval '1 microsecond'
FROM (
    SELECT unnest(sqlc.arg(ids)::bigint[]) AS id,
           unnest(sqlc.arg(retry_counts)::int[]) AS retry_count,
           unnest(sqlc.arg(last_errors)::text[]) AS last_error,
           unnest(sqlc.arg(delays_us)::bigint[]) AS delay_us
) r
WHERE o.id = r.id AND o.retry_count = r.retry_count AND COALESCE(o.published_at, 'infinity') = 'infinity'
RETURNING o.id, o.next_retry_at;

-- name: MarkDeadBatch :exec
-- GREATEST: the specification finds a dead letter by retry_count >= 10.
UPDATE events.outbox o
SET retry_count = GREATEST(o.retry_count + 1, 10),
    last_error = r.last_error,
    next_retry_at = 'infinity'
FROM (
    SELECT unnest(sqlc.arg(ids)::bigint[]) AS id,
           unnest(sqlc.arg(retry_counts)::int[]) AS retry_count,
           unnest(sqlc.arg(last_errors)::text[]) AS last_error
) r
WHERE o.id = r.id AND o.retry_count = r.retry_count AND COALESCE(o.published_at, 'infinity') = 'infinity';

-- name: RecordDeliveries :exec
-- The subscribers that are through with an event that failed in part. An event that was discarded meanwhile is skipped.
INSERT INTO events.outbox_delivery (outbox_id, subscriber, dead)
SELECT r.outbox_id, r.subscriber, r.dead
FROM (
    SELECT unnest(sqlc.arg(ids)::bigint[]) AS outbox_id,
           unnest(sqlc.arg(subscribers)::text[]) AS subscriber,
           unnest(sqlc.arg(dead)::boolean[]) AS dead
) r
WHERE EXISTS (SELECT FROM events.outbox o WHERE o.id = r.outbox_id)
ON CONFLICT (outbox_id, subscriber) DO UPDATE SET dead = EXCLUDED.dead, settled_at = now();
