-- The specification's invariants, kept by the database: published_at goes one way and
-- retry_count never falls. The WHEN clauses keep a correct update free of any call.

-- +goose Up
SET LOCAL lock_timeout = '3s';

-- +goose StatementBegin
CREATE FUNCTION events.outbox_keep_published() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.published_at IS NULL THEN
        RAISE EXCEPTION 'events.outbox: event % is published; published_at never goes back to NULL', OLD.id
            USING ERRCODE = 'check_violation', HINT = 'Insert a new event to send it again.';
    END IF;
    NEW.published_at := OLD.published_at; -- marking twice is harmless
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION events.outbox_keep_retry_count() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'events.outbox: retry_count of event % would fall from % to %; it never falls', OLD.id, OLD.retry_count, NEW.retry_count
        USING ERRCODE = 'check_violation', HINT = 'Set next_retry_at to retry an event, and leave retry_count.';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER outbox_keep_published
BEFORE UPDATE ON events.outbox
FOR EACH ROW
WHEN (OLD.published_at IS NOT NULL AND NEW.published_at IS DISTINCT FROM OLD.published_at)
EXECUTE FUNCTION events.outbox_keep_published();

CREATE TRIGGER outbox_keep_retry_count
BEFORE UPDATE ON events.outbox
FOR EACH ROW
WHEN (NEW.retry_count < OLD.retry_count)
EXECUTE FUNCTION events.outbox_keep_retry_count();

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 3';

-- +goose Down
SET LOCAL lock_timeout = '3s';
DROP TRIGGER outbox_keep_retry_count ON events.outbox;
DROP TRIGGER outbox_keep_published ON events.outbox;
DROP FUNCTION events.outbox_keep_retry_count();
DROP FUNCTION events.outbox_keep_published();

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 2';
