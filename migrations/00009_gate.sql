-- The gate: publishers send NOTIFY only while the worker sleeps. NOTIFY takes a lock of the whole cluster at commit and
-- holds it through the flush of the log, so publishers that notify commit one after another; an advisory lock costs them
-- nothing. A worker that sleeps holds it exclusively; a publisher tries it shared, until its transaction ends:
--   got it      no worker sleeps, nor can one fall asleep before this transaction has ended: it will look
--   not got it  a worker sleeps, or is about to: notify
-- The lock's keys are 1734440037 ("gate" in ASCII) and the OID of events.outbox.
--
-- SECURITY DEFINER: a publisher needs no EXECUTE on the functions of advisory locks, which some databases revoke.
--
-- Three modes; SELECT events.outbox_set_notify(…) switches at any time, without a lock on the table:
--   gated   as above (the default)
--   always  every inserting transaction notifies: for other programs that listen on events_outbox_wake
--   off     none does, and the worker polls: for two-phase commit, since PREPARE TRANSACTION refuses NOTIFY

-- +goose Up
SET LOCAL lock_timeout = '3s';

-- +goose StatementBegin
CREATE FUNCTION events.outbox_set_notify(mode TEXT) RETURNS VOID
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $set$
DECLARE
    body TEXT;
    needed TEXT;
    creator OID := (SELECT p.proowner FROM pg_proc p WHERE p.oid = 'events.outbox_notify()'::regprocedure);
BEGIN
    CASE mode
    WHEN 'gated' THEN
        needed := 'pg_catalog.pg_try_advisory_xact_lock_shared(integer, integer)';
        body := format('
BEGIN
    IF EXISTS (SELECT FROM new_rows) THEN
        IF NOT pg_try_advisory_xact_lock_shared(1734440037, TG_RELID::integer) THEN
            PERFORM pg_notify(%L, %L);
        END IF;
    END IF;
    RETURN NULL;
END
', 'events_outbox_wake', '');
    WHEN 'always' THEN
        needed := 'pg_catalog.pg_notify(text, text)';
        body := format('
BEGIN
    IF EXISTS (SELECT FROM new_rows) THEN
        PERFORM pg_notify(%L, %L);
    END IF;
    RETURN NULL;
END
', 'events_outbox_wake', '');
    WHEN 'off' THEN
        body := '
BEGIN
    RETURN NULL;
END
';
    ELSE
        RAISE EXCEPTION 'unknown mode %: want gated, always or off', quote_nullable(mode)
            USING ERRCODE = 'invalid_parameter_value';
    END CASE;

    IF NOT has_function_privilege(creator, needed, 'EXECUTE') THEN
        RAISE EXCEPTION 'the owner of events.outbox_notify() may not call %', needed
            USING ERRCODE = 'insufficient_privilege', HINT = format('GRANT EXECUTE ON FUNCTION %s TO %s', needed, creator::regrole);
    END IF;

    EXECUTE format('CREATE OR REPLACE FUNCTION events.outbox_notify() RETURNS trigger '
        'LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L', body);
    EXECUTE format('CREATE OR REPLACE FUNCTION events.outbox_notify_mode() RETURNS TEXT LANGUAGE sql STABLE PARALLEL SAFE AS %L',
        format('SELECT %L', mode));

    IF mode <> 'off' AND EXISTS (
        SELECT FROM pg_trigger t
        WHERE t.tgrelid = 'events.outbox'::regclass AND t.tgname = 'outbox_notify' AND t.tgenabled NOT IN ('O', 'A'))
    THEN
        ALTER TABLE events.outbox ENABLE TRIGGER outbox_notify;
    END IF;
END
$set$;
-- +goose StatementEnd

-- A trigger that somebody has switched off stays off.
SELECT events.outbox_set_notify(CASE WHEN t.tgenabled IN ('O', 'A') THEN 'gated' ELSE 'off' END)
FROM pg_catalog.pg_trigger t
WHERE t.tgrelid = 'events.outbox'::regclass AND t.tgname = 'outbox_notify';

-- What the worker calls to fall asleep: it waits for the publishers that are silent to end, 200 ms at most, since a
-- statement that waits holds a snapshot. That they have not ended in time is no error, and not in the server's log. Whoever
-- publishes while this waits notifies.
-- +goose StatementBegin
CREATE FUNCTION events.outbox_close_gate() RETURNS BOOLEAN
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
    PERFORM pg_advisory_lock(1734440037, 'events.outbox'::regclass::oid::integer);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
-- +goose StatementEnd

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 9';

-- +goose Down
SET LOCAL lock_timeout = '3s';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION events.outbox_notify() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows) THEN
        PERFORM pg_notify('events_outbox_wake', '');
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Before, off was a disabled trigger.
-- +goose StatementBegin
DO $off$
BEGIN
    IF events.outbox_notify_mode() = 'off' THEN
        ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify;
    END IF;
END
$off$;
-- +goose StatementEnd

DROP FUNCTION events.outbox_close_gate();
DROP FUNCTION events.outbox_notify_mode();
DROP FUNCTION events.outbox_set_notify(TEXT);

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 8';
