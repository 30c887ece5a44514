-- The rows in retry, by aggregate: "does an earlier failed event hold this one back?" costs one
-- probe of a nearly empty index.

-- +goose NO TRANSACTION
-- +goose Up
-- Concurrently: an adopted table may be live. An attempt that was cut off leaves an invalid index.
DROP INDEX CONCURRENTLY IF EXISTS events.outbox_retry_aggregate_idx;

CREATE INDEX CONCURRENTLY outbox_retry_aggregate_idx
ON events.outbox (aggregate_type, aggregate_id, id)
WHERE published_at IS NULL AND next_retry_at < 'infinity';

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 4';

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS events.outbox_retry_aggregate_idx;

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 3';
