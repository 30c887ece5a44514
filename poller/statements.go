package poller

import (
	"context"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// statements is what the fetch loop asks the database, one statement at a time. A [session] answers it.
type statements interface {
	fetch(ctx context.Context, c *cursor, limit, maxBytes int, holdBack bool) (page, error)
	fetchNew(ctx context.Context, c *cursor, limit, maxBytes int) (page, error)
	fetchByID(ctx context.Context, ids []int64, maxBytes int) ([]*row, error)
	reload(ctx context.Context, lanes []reload, perLane, maxBytes int) ([]reloadResult, error)
	fetchDue(ctx context.Context, r *retries, limit int) (dueRows, error)
	sweep(ctx context.Context, after, upTo int64) (rows []eventsdb.SweepSliceRow, reached int64, err error)
	readSequence(ctx context.Context) (sequence, error)
}
