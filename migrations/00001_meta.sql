-- What the outbox knows about itself: the namespace of the public ids, and whether the
-- table was found or made. outbox_schema_version() is replaced by every migration, so that
-- a worker recognises the schema whichever tool applied it.

-- +goose Up
CREATE TABLE events.outbox_meta (
    singleton  BOOLEAN PRIMARY KEY DEFAULT true CHECK (singleton),
    namespace  UUID NOT NULL DEFAULT gen_random_uuid(),
    adopted    BOOLEAN NOT NULL
);

INSERT INTO events.outbox_meta (adopted)
VALUES (to_regclass('events.outbox') IS NOT NULL);

CREATE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 1';

-- +goose Down
DROP FUNCTION events.outbox_schema_version();
DROP TABLE events.outbox_meta;
