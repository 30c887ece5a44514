-- Who has settled an event that failed in part: a retry calls only the other subscribers. Rows are
-- written only for such events and go with the event.

-- +goose Up
SET LOCAL lock_timeout = '3s';

CREATE TABLE events.outbox_delivery (
    outbox_id   BIGINT NOT NULL REFERENCES events.outbox (id) ON DELETE CASCADE,
    subscriber  TEXT NOT NULL,
    dead        BOOLEAN NOT NULL DEFAULT false, -- failed for good, as against delivered
    settled_at  TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    PRIMARY KEY (outbox_id, subscriber)
);

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 6';

-- +goose Down
SET LOCAL lock_timeout = '3s';
DROP TABLE events.outbox_delivery;

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 5';
