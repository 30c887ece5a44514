-- A queue updates every row once and deletes it later: vacuum by a fixed number of rows, not by a
-- share of a table that grows for 30 days, and keep the statistics young.
--
-- But none of published_at: between a backlog and none the share of unpublished rows changes faster than statistics do,
-- and where they say that most rows are unpublished, a partial index looks no better than one over all rows. Without
-- statistics PostgreSQL takes the unpublished rows for few, always.

-- +goose Up
SET LOCAL lock_timeout = '3s';

ALTER TABLE events.outbox SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 1
);

ALTER TABLE events.outbox ALTER COLUMN published_at SET STATISTICS 0;

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 8';

-- +goose Down
SET LOCAL lock_timeout = '3s';
ALTER TABLE events.outbox ALTER COLUMN published_at SET STATISTICS -1;
ALTER TABLE events.outbox RESET (
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_insert_scale_factor,
    autovacuum_vacuum_insert_threshold,
    autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold,
    autovacuum_vacuum_cost_delay
);

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 7';
