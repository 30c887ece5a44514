-- The table exactly as the specification has it. A table that a service already made by the
-- specification is adopted as it is; one that differs is refused with the list of differences.

-- +goose Up
-- +goose StatementBegin
DO $adopt$
DECLARE
    differences TEXT;
BEGIN
    IF to_regclass('events.outbox') IS NULL THEN
        RETURN;
    END IF;

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
        SELECT a.attname::TEXT AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
               pg_get_expr(d.adbin, d.adrelid) AS default_expr, a.attgenerated <> '' AS generated
        FROM pg_attribute a
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = 'events.outbox'::regclass AND a.attnum > 0 AND NOT a.attisdropped
    ), expected_index (name, definition) AS (VALUES
        ('outbox_unpublished_idx',         'btree (id) WHERE (published_at IS NULL)'),
        ('outbox_retry_due_idx',           'btree (next_retry_at) WHERE ((published_at IS NULL) AND (next_retry_at IS NOT NULL))'),
        ('outbox_aggregate_idx',           'btree (aggregate_type, aggregate_id, id)'),
        ('outbox_event_type_occurred_idx', 'btree (event_type, occurred_at)')
    ), actual_index AS (
        SELECT c.relname::TEXT AS name, i.indisprimary AS is_primary,
               substring(pg_get_indexdef(i.indexrelid) FROM ' USING (.*)$') AS definition
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = 'events.outbox'::regclass AND i.indisvalid
    ), difference (text) AS (
        SELECT 'it is not an ordinary table'
        FROM pg_class WHERE oid = 'events.outbox'::regclass AND relkind <> 'r'
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
        SELECT format('column %s has no DEFAULT %s', e.name, e.default_expr)
        FROM expected_column e JOIN actual_column a USING (name)
        WHERE e.default_expr IS NOT NULL AND a.default_expr IS DISTINCT FROM e.default_expr
        UNION ALL
        SELECT 'column id has no sequence of its own (BIGSERIAL)'
        FROM expected_column e JOIN actual_column a USING (name)
        WHERE e.name = 'id' AND pg_get_serial_sequence('events.outbox', 'id') IS NULL
        UNION ALL
        SELECT format('column %s is not in the specification, and NOT NULL without a default', a.name)
        FROM actual_column a
        WHERE a.required AND a.default_expr IS NULL AND NOT a.generated
          AND NOT EXISTS (SELECT FROM expected_column e WHERE e.name = a.name)
        UNION ALL
        SELECT 'the primary key is not (id)'
        WHERE NOT EXISTS (SELECT FROM actual_index WHERE is_primary AND definition = 'btree (id)')
        UNION ALL
        SELECT 'CONSTRAINT outbox_retry_nonneg CHECK (retry_count >= 0) is missing'
        WHERE NOT EXISTS (
            SELECT FROM pg_constraint
            WHERE conrelid = 'events.outbox'::regclass AND contype = 'c'
              AND pg_get_constraintdef(oid) LIKE 'CHECK ((retry_count >= 0))%')
        UNION ALL
        SELECT format('index %s is missing or different: CREATE INDEX CONCURRENTLY %s ON events.outbox USING %s', e.name, e.name, e.definition)
        FROM expected_index e
        WHERE NOT EXISTS (SELECT FROM actual_index a WHERE a.name = e.name AND a.definition = e.definition)
    )
    SELECT string_agg(text, '; ') INTO differences FROM difference;

    IF differences IS NOT NULL THEN
        RAISE EXCEPTION 'events.outbox exists and differs from the specification: %', differences
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Change the table so that it matches, then migrate again. Nothing was changed.';
    END IF;
END
$adopt$;
-- +goose StatementEnd

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

CREATE INDEX IF NOT EXISTS outbox_unpublished_idx
ON events.outbox (id)
WHERE published_at IS NULL;

CREATE INDEX IF NOT EXISTS outbox_retry_due_idx
ON events.outbox (next_retry_at)
WHERE published_at IS NULL AND next_retry_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS outbox_aggregate_idx
ON events.outbox (aggregate_type, aggregate_id, id);

CREATE INDEX IF NOT EXISTS outbox_event_type_occurred_idx
ON events.outbox (event_type, occurred_at);

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 2';

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

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 1';
