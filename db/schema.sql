-- Read by sqlc only: the migrations assume the schema, which the migrator makes under its lock.
CREATE SCHEMA events;
-- Likewise for audit/schema.sql.
CREATE SCHEMA audit;
