-- What a worker asks about the database before it starts, and the signals that it sends.

-- name: SchemaThere :one
-- Whether the schema tells its version, and whether there is a table at all.
SELECT (to_regprocedure('events.outbox_schema_version()') IS NOT NULL)::boolean AS versioned,
       (to_regclass('events.outbox') IS NOT NULL)::boolean AS table_there,
       current_database()::text AS database,
       pg_is_in_recovery() AS in_recovery;

-- name: SchemaFacts :one
SELECT events.outbox_schema_version()::int AS version,
       (SELECT m.namespace FROM events.outbox_meta m) AS namespace,
       pg_get_serial_sequence('events.outbox', 'id')::text AS sequence,
       COALESCE((SELECT s.seqcache FROM pg_catalog.pg_sequence s WHERE s.seqrelid = pg_get_serial_sequence('events.outbox', 'id')::regclass), 1)::bigint AS sequence_cache,
       current_setting('max_prepared_transactions')::int AS max_prepared_transactions;

-- name: NotifyMode :one
-- How publishers announce their events: gated, always, or off, also where somebody has switched the trigger off.
SELECT (CASE WHEN EXISTS (
    SELECT FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid = 'events.outbox'::regclass AND t.tgname = 'outbox_notify' AND t.tgenabled IN ('O', 'A'))
    THEN events.outbox_notify_mode() ELSE 'off' END)::text;

-- name: SetNotify :exec
SELECT events.outbox_set_notify(sqlc.arg(mode)::text);

-- name: MissingPrivileges :many
-- The worker's privileges that the current role lacks; one that archives deletes as well.
SELECT p.privilege::text
FROM (VALUES
    ('SELECT ON events.outbox', has_table_privilege('events.outbox', 'SELECT')),
    ('UPDATE ON events.outbox', has_table_privilege('events.outbox', 'UPDATE')
        OR (has_column_privilege('events.outbox', 'published_at', 'UPDATE') AND has_column_privilege('events.outbox', 'retry_count', 'UPDATE')
            AND has_column_privilege('events.outbox', 'last_error', 'UPDATE') AND has_column_privilege('events.outbox', 'next_retry_at', 'UPDATE'))),
    ('SELECT ON events.outbox_delivery', has_table_privilege('events.outbox_delivery', 'SELECT')),
    ('INSERT ON events.outbox_delivery', has_table_privilege('events.outbox_delivery', 'INSERT')),
    ('UPDATE ON events.outbox_delivery', has_table_privilege('events.outbox_delivery', 'UPDATE')),
    ('SELECT ON SEQUENCE ' || pg_get_serial_sequence('events.outbox', 'id'),
        has_sequence_privilege(pg_get_serial_sequence('events.outbox', 'id'), 'SELECT') OR has_sequence_privilege(pg_get_serial_sequence('events.outbox', 'id'), 'USAGE')),
    ('EXECUTE ON FUNCTION events.outbox_close_gate()', has_function_privilege('events.outbox_close_gate()', 'EXECUTE')),
    ('DELETE ON events.outbox', NOT sqlc.arg(archives)::boolean OR has_table_privilege('events.outbox', 'DELETE'))
) AS p (privilege, granted)
WHERE NOT p.granted;

-- name: Notify :exec
SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text);
