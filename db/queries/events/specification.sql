-- The specification's own queries, under its names.

-- name: FetchUnpublishedBatch :many
-- The specification's fetch; its default limit is 50. Index: outbox_unpublished_idx.
SELECT *
FROM events.outbox
WHERE published_at IS NULL
  AND (next_retry_at IS NULL OR next_retry_at <= NOW())
ORDER BY id ASC
LIMIT sqlc.arg(batch_size)::bigint;

-- name: MarkPublished :exec
-- Index: outbox_pkey or outbox_unpublished_idx, which are as good here.
UPDATE events.outbox
SET published_at = NOW()
WHERE id = sqlc.arg(id) AND published_at IS NULL;

-- name: MarkRetry :exec
-- The delay is in microseconds; the clock is the database's. Index: as MarkPublished.
UPDATE events.outbox
SET retry_count = retry_count + 1,
    last_error = sqlc.arg(last_error)::text,
    next_retry_at = NOW() + sqlc.arg(delay_us)::bigint * interval '1 microsecond'
WHERE id = sqlc.arg(id) AND published_at IS NULL;

-- name: ArchiveOldOutboxEvents :execrows
-- Deletes what was published longer ago than the retention (specification: 30 days). Dead letters and
-- pending events are never deleted.
DELETE FROM events.outbox
WHERE published_at IS NOT NULL
  AND published_at < NOW() - sqlc.arg(retention_us)::bigint * interval '1 microsecond';
