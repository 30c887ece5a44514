-- The table exactly as the specification has it, and what the outbox knows about itself: the
-- namespace of the public ids, and whether the table was found or made. A table that a service
-- already made by the specification is adopted as it is; one that differs is refused with the
-- list of differences. outbox_schema_version() is replaced by every migration, so that a worker
-- recognises the schema whichever tool applied it.

-- +goose Up
-- +goose StatementBegin
DO $adopt$
DECLARE
    differences TEXT;
BEGIN
    IF to_regclass('events.outbox') IS NULL THEN
        RETURN;
    END IF;

    SELECT 'it is not a table but ' || CASE c.relkind
               WHEN 'p' THEN 'a partitioned table' WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view'
               WHEN 'f' THEN 'a foreign table' ELSE 'another kind of object' END
    INTO differences
    FROM pg_class c WHERE c.oid = 'events.outbox'::regclass AND c.relkind <> 'r';

    IF differences IS NULL THEN
        -- A default is compared where the specification has one, and where it has none and an INSERT by
        -- the specification would take it.
        WITH expected_column (name, type, required, default_expr) AS (VALUES
            ('id',             'bigint',                   true,  NULL),
            ('aggregate_type', 'text',                     true,  NULL),
            ('aggregate_id',   'uuid',                     true,  NULL),
            ('event_type',     'text',                     true,  NULL),
            ('payload',        'jsonb',                    true,  NULL),
            ('occurred_at',    'timestamp with time zone', true,  'now()'),
            ('published_at',   'timestamp with time zone', false, NULL),
            ('retry_count',    'integer',                  true,  '0'),
            ('last_error',     'text',                     false, NULL),
            ('next_retry_at',  'timestamp with time zone', false, NULL)
        ), actual_column AS (
            SELECT a.attname::TEXT AS name, a.attnum AS number, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
                   d.oid AS default_oid, replace(pg_get_expr(d.adbin, d.adrelid), 'CURRENT_TIMESTAMP', 'now()') AS default_expr,
                   a.attidentity <> '' AS identity
            FROM pg_attribute a
            LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = 'events.outbox'::regclass AND a.attnum > 0 AND NOT a.attisdropped
        ), expected_index (name, definition) AS (VALUES
            ('outbox_unpublished_idx',         'btree (id) WHERE (published_at IS NULL)'),
            ('outbox_retry_due_idx',           'btree (next_retry_at) WHERE ((published_at IS NULL) AND (next_retry_at IS NOT NULL))'),
            ('outbox_aggregate_idx',           'btree (aggregate_type, aggregate_id, id)'),
            ('outbox_event_type_occurred_idx', 'btree (event_type, occurred_at)')
        ), actual_index AS (
            SELECT c.relname::TEXT AS name, i.indisprimary AND i.indimmediate AS is_primary, i.indisvalid AS valid,
                   CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END || regexp_replace(
                       substring(pg_get_indexdef(i.indexrelid) FROM ' USING (.*)$'), ' WITH \([^)]*\)', '') AS definition
            FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE i.indrelid = 'events.outbox'::regclass
        ), difference (text) AS (
            SELECT 'it is UNLOGGED: a crash empties it'
            FROM pg_class WHERE oid = 'events.outbox'::regclass AND relpersistence = 'u'
            UNION ALL
            SELECT 'it is part of an inheritance or partition tree'
            WHERE EXISTS (SELECT FROM pg_inherits WHERE 'events.outbox'::regclass IN (inhrelid, inhparent))
            UNION ALL
            SELECT format('column %s is missing', e.name)
            FROM expected_column e WHERE NOT EXISTS (SELECT FROM actual_column a WHERE a.name = e.name)
            UNION ALL
            SELECT format('column %s is %s%s, not %s%s', e.name,
                          a.type, CASE WHEN a.required THEN ' NOT NULL' ELSE '' END,
                          e.type, CASE WHEN e.required THEN ' NOT NULL' ELSE '' END)
            FROM expected_column e JOIN actual_column a USING (name)
            WHERE (a.type, a.required) IS DISTINCT FROM (e.type, e.required)
            UNION ALL
            SELECT format('column %s has %s, not %s', e.name,
                          COALESCE('DEFAULT ' || a.default_expr, 'no DEFAULT'), COALESCE('DEFAULT ' || e.default_expr, 'none'))
            FROM expected_column e JOIN actual_column a USING (name)
            WHERE (e.default_expr IS NOT NULL OR NOT e.required) AND a.default_expr IS DISTINCT FROM e.default_expr
            UNION ALL
            -- BIGSERIAL or an identity column: both draw the id within the inserting transaction, and lock the sequence until it ends.
            SELECT 'column id does not count up from a sequence of its own (BIGSERIAL)'
            FROM actual_column a
            WHERE a.name = 'id' AND NOT EXISTS (
                SELECT FROM pg_depend owned JOIN pg_sequence s ON s.seqrelid = owned.objid
                WHERE owned.classid = 'pg_class'::regclass AND owned.refclassid = 'pg_class'::regclass
                  AND owned.refobjid = 'events.outbox'::regclass AND owned.refobjsubid = a.number
                  AND s.seqincrement > 0 AND NOT s.seqcycle
                  AND (a.identity OR EXISTS (
                      SELECT FROM pg_depend used
                      WHERE used.classid = 'pg_attrdef'::regclass AND used.objid = a.default_oid AND used.refobjid = s.seqrelid)))
            UNION ALL
            SELECT format('column %s is not in the specification, and NOT NULL without a default', a.name)
            FROM actual_column a
            WHERE a.required AND a.default_oid IS NULL AND NOT a.identity
              AND NOT EXISTS (SELECT FROM expected_column e WHERE e.name = a.name)
            UNION ALL
            SELECT 'the primary key is not (id)'
            WHERE NOT EXISTS (SELECT FROM actual_index WHERE is_primary AND definition = 'UNIQUE btree (id)')
            UNION ALL
            SELECT 'CONSTRAINT outbox_retry_nonneg CHECK (retry_count >= 0) is missing'
            WHERE NOT EXISTS (
                SELECT FROM pg_constraint
                WHERE conrelid = 'events.outbox'::regclass AND contype = 'c'
                  AND pg_get_constraintdef(oid) = 'CHECK ((retry_count >= 0))')
            UNION ALL
            SELECT CASE
                WHEN a.name IS NULL THEN
                    format('index %s is missing: CREATE INDEX CONCURRENTLY %s ON events.outbox USING %s', e.name, e.name, e.definition)
                WHEN a.definition <> e.definition THEN
                    format('index %s is %s, not %s', e.name, a.definition, e.definition)
                ELSE
                    format('index %s is invalid: REINDEX INDEX CONCURRENTLY events.%s', e.name, e.name)
                END
            FROM expected_index e LEFT JOIN actual_index a USING (name)
            WHERE (a.definition = e.definition AND a.valid) IS NOT TRUE
        )
        SELECT string_agg(text, '; ') INTO differences FROM difference;
    END IF;

    IF differences IS NOT NULL THEN
        RAISE EXCEPTION 'events.outbox exists and differs from the specification: %', differences
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Change it so that it matches, then migrate again. Nothing was changed.';
    END IF;
END
$adopt$;
-- +goose StatementEnd

CREATE TABLE events.outbox_meta (
    singleton  BOOLEAN PRIMARY KEY DEFAULT true CHECK (singleton),
    namespace  UUID NOT NULL DEFAULT gen_random_uuid(),
    adopted    BOOLEAN NOT NULL
);

INSERT INTO events.outbox_meta (adopted)
VALUES (to_regclass('events.outbox') IS NOT NULL);

CREATE TABLE IF NOT EXISTS events.outbox (
    id                 BIGSERIAL PRIMARY KEY,
    aggregate_type     TEXT NOT NULL,
    aggregate_id       UUID NOT NULL,
    event_type         TEXT NOT NULL,
    payload            JSONB NOT NULL,
    occurred_at        TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    published_at       TIMESTAMPTZ,
    retry_count        INTEGER NOT NULL DEFAULT 0,
    last_error         TEXT,
    next_retry_at      TIMESTAMPTZ,
    CONSTRAINT outbox_retry_nonneg CHECK (retry_count >= 0)
);

-- +goose StatementBegin
DO $indexes$
BEGIN
    IF (SELECT adopted FROM events.outbox_meta) THEN
        RETURN; -- they are there, and CREATE INDEX IF NOT EXISTS would lock a live table to find out
    END IF;

    CREATE INDEX outbox_unpublished_idx
    ON events.outbox (id)
    WHERE published_at IS NULL;

    CREATE INDEX outbox_retry_due_idx
    ON events.outbox (next_retry_at)
    WHERE published_at IS NULL AND next_retry_at IS NOT NULL;

    CREATE INDEX outbox_aggregate_idx
    ON events.outbox (aggregate_type, aggregate_id, id);

    CREATE INDEX outbox_event_type_occurred_idx
    ON events.outbox (event_type, occurred_at);
END
$indexes$;
-- +goose StatementEnd

CREATE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 1';

-- +goose Down
-- An adopted table belongs to the service that made it.
-- +goose StatementBegin
DO $drop$
BEGIN
    IF NOT (SELECT adopted FROM events.outbox_meta) THEN
        DROP TABLE events.outbox;
    END IF;
END
$drop$;
-- +goose StatementEnd

DROP FUNCTION events.outbox_schema_version();
DROP TABLE events.outbox_meta;
