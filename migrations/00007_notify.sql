-- The wake-up: one empty NOTIFY on channel events_outbox_wake per inserting transaction (equal
-- notifications of one transaction are sent once), none for a statement that inserts no row.
-- Polling only, for instance for two-phase commit, which refuses NOTIFY:
--   ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify;

-- +goose Up
SET LOCAL lock_timeout = '3s';

-- +goose StatementBegin
CREATE FUNCTION events.outbox_notify() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows) THEN
        PERFORM pg_notify('events_outbox_wake', '');
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER outbox_notify
AFTER INSERT ON events.outbox
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT
EXECUTE FUNCTION events.outbox_notify();

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 7';

-- +goose Down
SET LOCAL lock_timeout = '3s';
DROP TRIGGER outbox_notify ON events.outbox;
DROP FUNCTION events.outbox_notify();

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 6';
