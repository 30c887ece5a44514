-- What an operator asks, and does with dead letters.
--
-- MatchOldest and MatchNewest are planned for their own parameters: a filter that is not given, and the states that are not
-- asked for, are folded away, and the planner finds the index of the state that is left.

-- name: MatchOldest :many
-- The ids of the events of a state that match a filter, between two ids, in rising order. Index, by the state and the
-- aggregate: outbox_dead_idx, outbox_retry_aggregate_idx, outbox_unpublished_idx, outbox_unpublished_aggregate_idx, outbox_aggregate_idx
-- or outbox_pkey.
SELECT o.id
FROM events.outbox o
WHERE o.id > sqlc.arg(after)::bigint AND o.id <= sqlc.arg(up_to)::bigint
  AND (sqlc.arg(state)::text = 'all'
       OR sqlc.arg(state)::text = 'unpublished' AND o.published_at IS NULL
       OR sqlc.arg(state)::text = 'pending' AND o.published_at IS NULL AND o.next_retry_at IS NULL
       OR sqlc.arg(state)::text = 'retrying' AND o.published_at IS NULL AND o.next_retry_at < 'infinity'
       OR sqlc.arg(state)::text = 'dead' AND o.published_at IS NULL AND o.next_retry_at = 'infinity'
       OR sqlc.arg(state)::text = 'published' AND o.published_at IS NOT NULL)
  AND (sqlc.narg(event_type)::text IS NULL OR o.event_type = sqlc.narg(event_type)::text)
  AND (sqlc.narg(aggregate_type)::text IS NULL OR o.aggregate_type = sqlc.narg(aggregate_type)::text)
  AND (sqlc.narg(aggregate_id)::uuid IS NULL OR o.aggregate_id = sqlc.narg(aggregate_id)::uuid)
  AND (sqlc.narg(error_contains)::text IS NULL OR strpos(lower(o.last_error), lower(sqlc.narg(error_contains)::text)) > 0)
  AND (sqlc.narg(older_than_us)::bigint IS NULL OR o.occurred_at < now() - sqlc.narg(older_than_us)::bigint * interval '1 microsecond')
  AND (sqlc.narg(newer_than_us)::bigint IS NULL OR o.occurred_at >= now() - sqlc.narg(newer_than_us)::bigint * interval '1 microsecond')
ORDER BY o.id
LIMIT sqlc.arg(page_size)::bigint;

-- name: MatchNewest :many
-- MatchOldest in falling order.
SELECT o.id
FROM events.outbox o
WHERE o.id > sqlc.arg(after)::bigint AND o.id <= sqlc.arg(up_to)::bigint
  AND (sqlc.arg(state)::text = 'all'
       OR sqlc.arg(state)::text = 'unpublished' AND o.published_at IS NULL
       OR sqlc.arg(state)::text = 'pending' AND o.published_at IS NULL AND o.next_retry_at IS NULL
       OR sqlc.arg(state)::text = 'retrying' AND o.published_at IS NULL AND o.next_retry_at < 'infinity'
       OR sqlc.arg(state)::text = 'dead' AND o.published_at IS NULL AND o.next_retry_at = 'infinity'
       OR sqlc.arg(state)::text = 'published' AND o.published_at IS NOT NULL)
  AND (sqlc.narg(event_type)::text IS NULL OR o.event_type = sqlc.narg(event_type)::text)
  AND (sqlc.narg(aggregate_type)::text IS NULL OR o.aggregate_type = sqlc.narg(aggregate_type)::text)
  AND (sqlc.narg(aggregate_id)::uuid IS NULL OR o.aggregate_id = sqlc.narg(aggregate_id)::uuid)
  AND (sqlc.narg(error_contains)::text IS NULL OR strpos(lower(o.last_error), lower(sqlc.narg(error_contains)::text)) > 0)
  AND (sqlc.narg(older_than_us)::bigint IS NULL OR o.occurred_at < now() - sqlc.narg(older_than_us)::bigint * interval '1 microsecond')
  AND (sqlc.narg(newer_than_us)::bigint IS NULL OR o.occurred_at >= now() - sqlc.narg(newer_than_us)::bigint * interval '1 microsecond')
ORDER BY o.id DESC
LIMIT sqlc.arg(page_size)::bigint;

-- name: EventsByID :many
-- Events, with their payloads if wanted, in id order. Index: outbox_pkey.
SELECT o.id, o.aggregate_type, o.aggregate_id, o.event_type,
       CASE WHEN sqlc.arg(payloads)::boolean THEN o.payload END::jsonb AS payload,
       o.occurred_at, o.published_at, o.retry_count, o.last_error, o.next_retry_at
FROM events.outbox o
WHERE o.id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[])
ORDER BY o.id;

-- name: LockEvents :many
-- EventsByID without payloads, locked until the transaction ends, in id order so that two operators do not deadlock.
-- Index: outbox_pkey.
SELECT o.id, o.published_at, o.next_retry_at
FROM events.outbox o
WHERE o.id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[])
ORDER BY o.id
FOR UPDATE;

-- name: TuneOperation :exec
-- Settings of this transaction: how long to wait for what somebody else has locked; and UTC, for the times of what is kept.
SELECT set_config('lock_timeout', sqlc.arg(lock_timeout_ms)::bigint::text, true), set_config('TimeZone', 'UTC', true);

-- name: TuneLookups :exec
-- Settings of this transaction, for HeldBack, LaterPublished and Surroundings, which look into the aggregates of some events: the order
-- that each asks for is the one of the index that it names, as db/queries/events/fetch.sql says.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true);

-- name: HeldBack :many
-- Which of some events wait for an earlier one of their aggregate that is in retry and not due, and for which. Index: outbox_pkey,
-- outbox_retry_aggregate_idx.
SELECT o.id, b.id AS blocked_by
FROM events.outbox o
CROSS JOIN LATERAL (
    SELECT e.id FROM events.outbox e
    WHERE e.aggregate_type = ANY (ARRAY[o.aggregate_type]) AND e.aggregate_id = o.aggregate_id AND e.id < o.id
      AND e.published_at IS NULL AND e.next_retry_at < 'infinity' AND e.next_retry_at > now()
    ORDER BY e.aggregate_type, e.id LIMIT 1) b
WHERE o.id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[])
ORDER BY o.id;

-- name: Surroundings :one
-- What an event means to its aggregate: the event in retry that holds it back, 0 for none; how many later events of the aggregate
-- are pending or in retry, and how many were published, counted up to a bound. Index: outbox_retry_aggregate_idx, outbox_unpublished_aggregate_idx,
-- outbox_aggregate_idx.
SELECT COALESCE((SELECT b.id FROM events.outbox b
                 WHERE b.aggregate_type = ANY (ARRAY[o.aggregate_type]) AND b.aggregate_id = o.aggregate_id AND b.id < o.id
                   AND b.published_at IS NULL AND b.next_retry_at < 'infinity'
                 ORDER BY b.aggregate_type, b.id LIMIT 1), 0)::bigint AS blocked_by,
       (SELECT count(*) FROM (
            SELECT FROM events.outbox l
            WHERE l.aggregate_type = ANY (ARRAY[o.aggregate_type]) AND l.aggregate_id = o.aggregate_id AND l.id > o.id
              AND l.published_at IS NULL AND COALESCE(l.next_retry_at, '-infinity') < 'infinity'
            ORDER BY l.aggregate_type, l.id
            LIMIT sqlc.arg(bound)::bigint) later) AS later_waiting,
       (SELECT count(*) FROM (
            SELECT FROM events.outbox l
            WHERE l.aggregate_type = ANY (ARRAY[o.aggregate_type]) AND l.aggregate_id = o.aggregate_id AND l.id > o.id
              AND l.published_at IS NOT NULL
            ORDER BY l.aggregate_type, l.id
            LIMIT sqlc.arg(bound)::bigint) later) AS later_published
FROM events.outbox o
WHERE o.id = sqlc.arg(id);

-- name: DeliveriesOf :many
-- What subscribers made of events that failed in part. Index: outbox_delivery_pkey.
SELECT d.outbox_id, d.subscriber, d.dead, d.settled_at
FROM events.outbox_delivery d
WHERE d.outbox_id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[])
ORDER BY d.outbox_id, d.subscriber;

-- name: EventLines :many
-- Events as they are kept: every column of the row, also those that a service has added, and what subscribers made of it. Index:
-- outbox_pkey, outbox_delivery_pkey.
SELECT (to_jsonb(o) || jsonb_build_object('deliveries', COALESCE(
    (SELECT jsonb_agg(to_jsonb(d) - 'outbox_id' ORDER BY d.subscriber) FROM events.outbox_delivery d WHERE d.outbox_id = o.id), '[]')))::jsonb AS line
FROM events.outbox o
WHERE o.id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[])
ORDER BY o.id;

-- name: LaterPublished :many
-- How many of the next events of its aggregate were published, for each of some events that has one; a bound says how many it looks
-- at. Index: outbox_pkey, outbox_aggregate_idx.
SELECT o.id, n.later
FROM events.outbox o
CROSS JOIN LATERAL (
    SELECT count(next.published_at) AS later FROM (
        SELECT l.published_at FROM events.outbox l
        WHERE l.aggregate_type = ANY (ARRAY[o.aggregate_type]) AND l.aggregate_id = o.aggregate_id AND l.id > o.id
        ORDER BY l.aggregate_type, l.id
        LIMIT sqlc.arg(bound)::bigint) next) n
WHERE o.id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[]) AND n.later > 0
ORDER BY o.id;

-- name: RedriveBatch :execrows
-- Makes dead letters due, in the order of their ids. Each gets a time of its own, all of them past: the look for due retries
-- pages by that time. Index: outbox_pkey.
UPDATE events.outbox o
SET next_retry_at = now() - (cardinality(r.ids) - r.position) * interval '1 microsecond'
FROM (SELECT a.ids, u.id, u.position
      FROM (SELECT (SELECT sqlc.arg(ids)::bigint[]) AS ids) a CROSS JOIN LATERAL unnest(a.ids) WITH ORDINALITY AS u (id, position)) r
WHERE o.id = r.id AND COALESCE(o.published_at, 'infinity') = 'infinity' AND o.next_retry_at = 'infinity';

-- name: DiscardBatch :execrows
-- Deletes dead letters. Index: outbox_pkey.
DELETE FROM events.outbox
WHERE id = ANY ((SELECT sqlc.arg(ids)::bigint[])::bigint[]) AND COALESCE(published_at, 'infinity') = 'infinity' AND next_retry_at = 'infinity';
