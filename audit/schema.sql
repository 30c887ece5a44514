-- The copies of published events, for ever: the columns of events.outbox and when the copy was made. The id alone is no key, since
-- a promoted standby can reissue ids.
CREATE TABLE audit.events (
    outbox_id      BIGINT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   UUID NOT NULL,
    event_type     TEXT NOT NULL,
    payload        JSONB NOT NULL,
    occurred_at    TIMESTAMPTZ NOT NULL,
    published_at   TIMESTAMPTZ NOT NULL,
    retry_count    INTEGER NOT NULL,
    last_error     TEXT,
    next_retry_at  TIMESTAMPTZ,
    recorded_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (outbox_id, occurred_at)
);

COMMENT ON TABLE audit.events IS 'made by outbox audit create';
