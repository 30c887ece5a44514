-- The dead letters by id: an operator lists and redrives them in that order, page by page, however many events wait
-- or were published.

-- +goose NO TRANSACTION
-- +goose Up
-- Concurrently: the table may be live. An attempt that was cut off leaves an invalid index.
DROP INDEX CONCURRENTLY IF EXISTS events.outbox_dead_idx;

CREATE INDEX CONCURRENTLY outbox_dead_idx
ON events.outbox (id)
WHERE published_at IS NULL AND next_retry_at = 'infinity';

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 10';

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS events.outbox_dead_idx;

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 9';
