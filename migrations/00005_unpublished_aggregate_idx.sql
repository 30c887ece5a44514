-- The unpublished rows by aggregate: a lane reloads what it passed over without reading what the
-- aggregate ever published.

-- +goose NO TRANSACTION
-- +goose Up
-- Concurrently: an adopted table may be live. An attempt that was cut off leaves an invalid index.
DROP INDEX CONCURRENTLY IF EXISTS events.outbox_unpublished_aggregate_idx;

CREATE INDEX CONCURRENTLY outbox_unpublished_aggregate_idx
ON events.outbox (aggregate_type, aggregate_id, id)
WHERE published_at IS NULL;

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 5';

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS events.outbox_unpublished_aggregate_idx;

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 4';
