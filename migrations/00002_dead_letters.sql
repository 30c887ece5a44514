-- Rows of an adopted table that had used up their attempts become dead letters, once: infinity keeps
-- them out of FetchUnpublishedBatch and puts them where the operator looks. A migration of
-- its own, because row locks held while the triggers wait for the table would deadlock with a poller.

-- +goose Up
SET LOCAL lock_timeout = '3s';

UPDATE events.outbox
SET next_retry_at = 'infinity'
WHERE published_at IS NULL AND retry_count >= 10 AND next_retry_at IS DISTINCT FROM 'infinity';

CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 2';

-- +goose Down
CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT 1';
