-- What the fetch loop reads. All of it runs on the owner session.
--
-- Columns that classify a row are computed, never WHERE conditions: LIMIT then counts scanned rows,
-- and the cursor can use every one of them.
--   state    0 pending, 1 due, 2 waiting for its retry, 3 dead
--   blocked  of a pending row: an earlier event of the aggregate is in retry, due or not (outbox_retry_aggregate_idx);
--            never where hold_back is false (Ordering: None). No other row is handled from here, and the lookup is more than half of
--            what a row costs the server: a worker that starts beside a million dead letters reads all of them
--
-- The rows of one aggregate are asked for in the order of type and id, which only the indexes on (aggregate_type, aggregate_id, id) have
-- for a session that may not sort; = ANY, since the order of a column that is = something is void, and an OFFSET, since
-- EXISTS drops an order without one. Otherwise the planner takes outbox_retry_due_idx or outbox_unpublished_idx for nearly
-- empty where the statistics are from another time, and each event filters all of it: 3 ms of each, with 30,000 redriven.

-- name: FetchPage :many
-- One snapshot in two parts: late commits, which are the unpublished ids in the gaps below the cursor (spans of ids that have not
-- been seen, in their order), as the first row, which alone has below, and new rows (id > cursor, in id order). A payload is left out where the row cannot be handled now, or
-- where it is stored in more bytes than a row of this page may have. A wake waits for this statement, so it has nothing
-- else: a running sum of bytes cost it 60 us of 300, the sequence's last value 45. Index: outbox_unpublished_idx.
SELECT 0::bigint AS id, ''::text AS aggregate_type, '00000000-0000-0000-0000-000000000000'::uuid AS aggregate_id, ''::text AS event_type,
       NULL::jsonb AS payload, NULL::timestamptz AS occurred_at, 0::int AS retry_count, 0::int AS state, false AS blocked,
       ARRAY(SELECT l.id
             FROM (SELECT unnest(sqlc.arg(gaps_from)::bigint[]) AS first_id, unnest(sqlc.arg(gaps_to)::bigint[]) AS last_id) g
             CROSS JOIN LATERAL (
                 SELECT i.id FROM events.outbox i
                 WHERE i.published_at IS NULL AND i.id >= g.first_id AND i.id <= g.last_id
                 ORDER BY i.id
                 OFFSET 0 -- gap by gap, not by a walk over the index
             ) l)::bigint[] AS below
UNION ALL
SELECT p.id, p.aggregate_type, p.aggregate_id, p.event_type,
       CASE WHEN p.state = 0 AND NOT p.blocked AND pg_column_size(p.payload) <= sqlc.arg(row_bytes)::bigint THEN p.payload END,
       p.occurred_at, p.retry_count, p.state, p.blocked, NULL
FROM (
    SELECT o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.occurred_at, o.retry_count,
           CASE WHEN o.next_retry_at IS NULL THEN 0 WHEN o.next_retry_at <= now() THEN 1
                WHEN o.next_retry_at < 'infinity' THEN 2 ELSE 3 END AS state,
           (sqlc.arg(hold_back)::boolean AND o.next_retry_at IS NULL AND EXISTS (
               SELECT FROM events.outbox b
               WHERE b.aggregate_type = ANY (ARRAY[o.aggregate_type]) AND b.aggregate_id = o.aggregate_id AND b.id < o.id
                 AND b.published_at IS NULL AND b.next_retry_at < 'infinity'
               ORDER BY b.aggregate_type, b.id OFFSET 0))::boolean AS blocked
    FROM events.outbox o
    WHERE o.published_at IS NULL AND o.id > sqlc.arg(cursor)::bigint
    ORDER BY o.id
    LIMIT sqlc.arg(page_size)::bigint
) p;

-- name: FetchNew :many
-- The new rows alone (id > cursor, in id order), for the moments when nothing can appear below the cursor and no event is in
-- retry or dead: so an event finds an idle worker, and this costs it 85 us less than FetchPage. Index: outbox_unpublished_idx.
SELECT o.id, o.aggregate_type, o.aggregate_id, o.event_type,
       CASE WHEN o.next_retry_at IS NULL AND pg_column_size(o.payload) <= sqlc.arg(row_bytes)::bigint THEN o.payload END::jsonb AS payload,
       o.occurred_at, o.retry_count,
       CASE WHEN o.next_retry_at IS NULL THEN 0 WHEN o.next_retry_at <= now() THEN 1
            WHEN o.next_retry_at < 'infinity' THEN 2 ELSE 3 END::int AS state, false AS blocked
FROM events.outbox o
WHERE o.published_at IS NULL AND o.id > sqlc.arg(cursor)::bigint
ORDER BY o.id
LIMIT sqlc.arg(page_size)::bigint;

-- name: FetchByID :many
-- The rows of late commits, in the shape of FetchPage's new rows. Index: outbox_unpublished_idx.
SELECT p.id, p.aggregate_type, p.aggregate_id, p.event_type,
       CASE WHEN p.state = 0 AND NOT p.blocked AND p.bytes_before < sqlc.arg(max_bytes)::bigint THEN p.payload END::jsonb AS payload,
       p.occurred_at, p.retry_count, p.state, p.blocked
FROM (
    SELECT o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.occurred_at, o.retry_count,
           CASE WHEN o.next_retry_at IS NULL THEN 0 WHEN o.next_retry_at <= now() THEN 1
                WHEN o.next_retry_at < 'infinity' THEN 2 ELSE 3 END::int AS state,
           (sqlc.arg(hold_back)::boolean AND o.next_retry_at IS NULL AND EXISTS (
               SELECT FROM events.outbox b
               WHERE b.aggregate_type = ANY (ARRAY[o.aggregate_type]) AND b.aggregate_id = o.aggregate_id AND b.id < o.id
                 AND b.published_at IS NULL AND b.next_retry_at < 'infinity'
               ORDER BY b.aggregate_type, b.id OFFSET 0))::boolean AS blocked,
           sum(pg_column_size(o.payload)) OVER (ORDER BY o.id ROWS UNBOUNDED PRECEDING) - pg_column_size(o.payload) AS bytes_before
    FROM events.outbox o
    WHERE o.id = ANY (sqlc.arg(ids)::bigint[]) AND o.published_at IS NULL
) p
ORDER BY p.id;

-- name: ReloadLanes :many
-- The lowest unpublished rows of some aggregates, each from its own id on, and whether an event before that id
-- holds the aggregate back. A payload is left out beyond the lane's share of bytes. Index:
-- outbox_unpublished_aggregate_idx; deliveries: outbox_delivery_pkey.
SELECT w.lane,
       (sqlc.arg(hold_back)::boolean AND EXISTS (
           SELECT FROM events.outbox b
           WHERE b.aggregate_type = ANY (ARRAY[w.aggregate_type]) AND b.aggregate_id = w.aggregate_id AND b.id < w.from_id
             AND b.published_at IS NULL AND b.next_retry_at < 'infinity'
           ORDER BY b.aggregate_type, b.id OFFSET 0))::boolean AS blocked,
       o.id, o.event_type, o.occurred_at, o.retry_count, o.state,
       CASE WHEN o.state < 2 AND o.bytes_before < sqlc.arg(max_bytes)::bigint THEN o.payload END::jsonb AS payload,
       CASE WHEN o.state = 1 THEN ARRAY(SELECT d.subscriber FROM events.outbox_delivery d WHERE d.outbox_id = o.id AND NOT d.dead) END::text[] AS delivered,
       CASE WHEN o.state = 1 THEN ARRAY(SELECT d.subscriber FROM events.outbox_delivery d WHERE d.outbox_id = o.id AND d.dead) END::text[] AS dead
FROM (
    SELECT generate_subscripts(sqlc.arg(aggregate_types)::text[], 1)::int AS lane,
           unnest(sqlc.arg(aggregate_types)::text[]) AS aggregate_type,
           unnest(sqlc.arg(aggregate_ids)::uuid[]) AS aggregate_id,
           unnest(sqlc.arg(from_ids)::bigint[]) AS from_id
) w
CROSS JOIN LATERAL (
    SELECT n.id, n.event_type, n.payload, n.occurred_at, n.retry_count,
           CASE WHEN n.next_retry_at IS NULL THEN 0 WHEN n.next_retry_at <= now() THEN 1
                WHEN n.next_retry_at < 'infinity' THEN 2 ELSE 3 END::int AS state,
           sum(pg_column_size(n.payload)) OVER (ORDER BY n.aggregate_type, n.id ROWS UNBOUNDED PRECEDING) - pg_column_size(n.payload) AS bytes_before
    FROM (
        SELECT * FROM events.outbox u
        WHERE u.aggregate_type = ANY (ARRAY[w.aggregate_type]) AND u.aggregate_id = w.aggregate_id
          AND u.published_at IS NULL AND u.id >= w.from_id
        ORDER BY u.aggregate_type, u.id
        LIMIT sqlc.arg(per_lane)::bigint
    ) n
) o
ORDER BY w.lane, o.id;

-- name: FetchDue :many
-- The aggregates with due retries after a position in (next_retry_at, id), and, as the last row with id 0, how
-- long until the next retry (NULL: none waits), at most a year, and whether there are dead letters. Index: outbox_retry_due_idx.
(SELECT d.id, d.aggregate_type, d.aggregate_id, d.next_retry_at, NULL::bigint AS next_in_us, false AS dead
 FROM events.outbox d
 WHERE d.published_at IS NULL AND d.next_retry_at IS NOT NULL AND d.next_retry_at <= now()
   AND d.next_retry_at >= sqlc.arg(after_time)::timestamptz
   AND (d.next_retry_at, d.id) > (sqlc.arg(after_time)::timestamptz, sqlc.arg(after_id)::bigint)
 ORDER BY d.next_retry_at, d.id
 LIMIT sqlc.arg(page_size)::bigint)
UNION ALL
SELECT 0, '', '00000000-0000-0000-0000-000000000000'::uuid, NULL,
       (SELECT (LEAST(extract(epoch FROM n.next_retry_at - now()), 31557600) * 1000000)::bigint
        FROM events.outbox n
        WHERE n.published_at IS NULL AND n.next_retry_at > now() AND n.next_retry_at < 'infinity'
        ORDER BY n.next_retry_at LIMIT 1),
       COALESCE((SELECT true FROM events.outbox x
                 WHERE x.published_at IS NULL AND x.next_retry_at >= 'infinity'
                 ORDER BY x.next_retry_at DESC LIMIT 1), false);

-- name: SweepReach :one
-- How far a slice after an id (0 and above) may go up to another: to so many unpublished rows. Index: outbox_unpublished_idx.
SELECT COALESCE((SELECT u.id FROM events.outbox u
                 WHERE u.published_at IS NULL AND u.id > sqlc.arg(after_id)::bigint AND u.id <= sqlc.arg(up_to)::bigint
                 ORDER BY u.id LIMIT 1 OFFSET sqlc.arg(most)::bigint - 1), sqlc.arg(up_to)::bigint)::bigint AS reach;

-- name: SweepSlice :many
-- The rows of an id range that could be handled now: all of them should be covered by what the worker holds
-- in memory. A range from 0 begins with the lowest id: the sequence gives out none below 1, but somebody may have chosen one.
-- Their age is at least 0 and at most a century, and 0 where occurred_at is infinite. Index: outbox_unpublished_idx.
SELECT s.id, s.aggregate_type, s.aggregate_id, s.next_retry_at,
       (CASE WHEN isfinite(s.occurred_at) THEN LEAST(GREATEST(extract(epoch FROM now() - s.occurred_at), 0), 3155760000) ELSE 0 END * 1000000)::float8 AS age_us
FROM events.outbox s
WHERE s.published_at IS NULL
  AND s.id > CASE sqlc.arg(after_id)::bigint WHEN 0 THEN -9223372036854775807 ELSE sqlc.arg(after_id)::bigint END
  AND s.id <= sqlc.arg(up_to)::bigint
  AND (s.next_retry_at IS NULL OR s.next_retry_at <= now())
  AND NOT (sqlc.arg(hold_back)::boolean AND EXISTS (
      SELECT FROM events.outbox b
      WHERE b.aggregate_type = ANY (ARRAY[s.aggregate_type]) AND b.aggregate_id = s.aggregate_id AND b.id < s.id
        AND b.published_at IS NULL AND b.next_retry_at < 'infinity'
      ORDER BY b.aggregate_type, b.id OFFSET 0))
ORDER BY s.id;

-- name: ReadSequence :many
-- The sequence's last value (holder ''), and after it, as the order of an Append is, the transactions that have drawn an id
-- and not ended, prepared ones and rolled-back savepoints included: nextval holds RowExclusiveLock on the sequence
-- until its transaction ends. So whoever drew an id up to the last value holds it still, or has ended. Reading
-- the last value takes the same lock. Besides, marked by notifying, the transactions that wait for the lock that NOTIFY
-- takes at commit.
SELECT COALESCE(pg_sequence_last_value(sqlc.arg(sequence)::text::regclass), 0)::bigint AS last_value, ''::text AS holder, false AS notifying
UNION ALL
SELECT 0, l.virtualtransaction::text, l.locktype = 'object'
FROM pg_catalog.pg_locks l
WHERE (l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
       AND l.relation = sqlc.arg(sequence)::text::regclass
       AND l.pid IS DISTINCT FROM pg_backend_pid())
   OR (l.locktype = 'object' AND l.database = 0 AND l.classid = 1262 AND l.objid = 0 AND NOT l.granted);
