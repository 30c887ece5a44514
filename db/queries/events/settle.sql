-- The outcomes of events, many at a time. Index: outbox_pkey throughout. published_at IS NULL and the fetched
-- retry_count are guards: a settle whose commit is unknown can be repeated.
--
-- These run on pooled sessions, whose planner settings are not ours, and two things keep the planner on that index. The first
-- guard is written with COALESCE, so that no partial index on published_at IS NULL matches it: where statistics are old,
-- the planner takes such an index for nearly empty and reads all of it. And an array comes from a (SELECT), so that the
-- planner does not see how long it is: for a thousand ids it would rather read the whole of a table of medium size.

-- name: MarkPublishedBatch :exec
-- Unless durable, the commit does not wait for the disk: set_config, which the (SELECT) calls once, changes the setting for this
-- transaction alone, in the same round trip and through any pooler.
UPDATE events.outbox
SET published_at = now()
WHERE id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[]) AND COALESCE(published_at, 'infinity') = 'infinity'
  AND (SELECT CASE WHEN NOT sqlc.arg(durable)::boolean THEN set_config('synchronous_commit', 'off', true) ELSE 'as it is' END) IS NOT NULL;

-- name: MarkRetryBatch :many
-- Delays are in microseconds. A count at the end of its type stays there.
UPDATE events.outbox o
SET retry_count = LEAST(o.retry_count, 2147483646) + 1,
    last_error = r.last_error,
    next_retry_at = now() + r.delay_us * interval '1 microsecond'
FROM (
    SELECT unnest((SELECT sqlc.arg(ids)::bigint[])) AS id,
           unnest((SELECT sqlc.arg(retry_counts)::int[])) AS retry_count,
           unnest((SELECT sqlc.arg(last_errors)::text[])) AS last_error,
           unnest((SELECT sqlc.arg(delays_us)::bigint[])) AS delay_us
) r
WHERE o.id = r.id AND o.retry_count = r.retry_count AND COALESCE(o.published_at, 'infinity') = 'infinity'
RETURNING o.id, o.next_retry_at;

-- name: MarkDeadBatch :exec
-- GREATEST: the specification finds a dead letter by retry_count >= 10. A count at the end of its type stays there.
UPDATE events.outbox o
SET retry_count = GREATEST(LEAST(o.retry_count, 2147483646) + 1, 10),
    last_error = r.last_error,
    next_retry_at = 'infinity'
FROM (
    SELECT unnest((SELECT sqlc.arg(ids)::bigint[])) AS id,
           unnest((SELECT sqlc.arg(retry_counts)::int[])) AS retry_count,
           unnest((SELECT sqlc.arg(last_errors)::text[])) AS last_error
) r
WHERE o.id = r.id AND o.retry_count = r.retry_count AND COALESCE(o.published_at, 'infinity') = 'infinity';

-- name: RecordDeliveries :exec
-- The subscribers that are through with an event that failed in part. An event that was discarded meanwhile is skipped.
INSERT INTO events.outbox_delivery (outbox_id, subscriber, dead)
SELECT r.outbox_id, r.subscriber, r.dead
FROM (
    SELECT unnest((SELECT sqlc.arg(ids)::bigint[])) AS outbox_id,
           unnest((SELECT sqlc.arg(subscribers)::text[])) AS subscriber,
           unnest((SELECT sqlc.arg(dead)::boolean[])) AS dead
) r
WHERE EXISTS (SELECT FROM events.outbox o WHERE o.id = r.outbox_id)
ON CONFLICT (outbox_id, subscriber) DO UPDATE SET dead = EXCLUDED.dead, settled_at = now();
