package measure

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

const (
	// floorFetch is how many rows the loop that is woken asks for.
	floorFetch = 50
	// floorPage and floorSettlers are the best of a loop that drains: more of either gained nothing.
	floorPage     = 1000
	floorSettlers = 2
)

// wakeSource is what tells a bare loop to look.
type wakeSource func(ctx context.Context, conn *pgx.Conn) (wait func(context.Context) error, err error)

// byNotification wakes a loop by LISTEN.
func byNotification(ctx context.Context, conn *pgx.Conn) (wait func(context.Context) error, err error) {
	_, err = conn.Exec(ctx, "LISTEN "+pgnames.WakeChannel)
	return func(ctx context.Context) error {
		_, err := conn.WaitForNotification(ctx)
		return err
	}, err
}

// byChannel wakes a loop from within the process.
func byChannel(wakes <-chan struct{}) wakeSource {
	return func(context.Context, *pgx.Conn) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			select {
			case <-wakes:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil
	}
}

// byClock wakes a loop at intervals.
func byClock(interval time.Duration) wakeSource {
	return func(context.Context, *pgx.Conn) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			select {
			case <-time.After(interval):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil
	}
}

// consumeBarely is the least that a woken consumer does: it fetches what is new by id, and hands it on. An event that commits
// after one with a higher id escapes it.
func consumeBarely(ctx context.Context, conn *pgx.Conn, wait func(context.Context) error, fetched chan<- int64) error {
	var last int64
	for {
		if err := wait(ctx); err != nil {
			return err
		}
		for more := true; more; {
			page, err := fetchPage(ctx, conn, last, floorFetch)
			if err != nil {
				return err
			}
			for _, id := range page {
				last = id
				fetched <- id
			}
			more = len(page) == floorFetch
		}
	}
}

// fetchPage reads unpublished events with higher ids than after, and returns their ids.
func fetchPage(ctx context.Context, conn *pgx.Conn, after int64, limit int) (ids []int64, err error) {
	rows, err := conn.Query(ctx, `
		SELECT id, aggregate_type, aggregate_id, event_type, payload, occurred_at FROM events.outbox
		WHERE published_at IS NULL AND id > $1 ORDER BY id LIMIT $2`, after, limit)
	if err != nil {
		return nil, err
	}
	var e outbox.Event
	_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.AggregateType, &e.AggregateID, &e.Type, &e.Data, &e.OccurredAt}, func() error {
		ids = append(ids, e.ID)
		return nil
	})
	return ids, err
}

// drainBarely is the least that a consumer of a backlog does: one session fetches pages, two others mark them as published. It
// returns the time from the first page to the last mark. Where a limit is given, it fetches no more after it.
func drainBarely(ctx context.Context, db *Database, _ int, limit time.Duration) (took time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fetcher, err := db.Connect(ctx)
	if err != nil {
		return 0, err
	}
	defer closeConn(ctx, fetcher)

	pages := make(chan []int64, floorSettlers)
	settled := make(chan error, floorSettlers)
	for range floorSettlers {
		go func() {
			err := settlePages(ctx, db, pages)
			if err != nil {
				cancel(err)
			}
			settled <- err
		}()
	}
	began, fetchErr := fetchPages(ctx, fetcher, pages, limit)
	close(pages)
	errs := []error{fetchErr}
	for range floorSettlers {
		errs = append(errs, <-settled)
	}
	return time.Since(began), errors.Join(errs...)
}

// fetchPages reads all unpublished events in pages, in id order, and returns when it had the first.
func fetchPages(ctx context.Context, conn *pgx.Conn, pages chan<- []int64, limit time.Duration) (began time.Time, err error) {
	var last int64
	for {
		page, err := fetchPage(ctx, conn, last, floorPage)
		if err != nil {
			return began, err
		}
		if began.IsZero() {
			began = time.Now()
		}
		if len(page) == 0 || limit > 0 && time.Since(began) > limit {
			return began, nil
		}
		last = page[len(page)-1]
		select {
		case pages <- page:
		case <-ctx.Done():
			return began, context.Cause(ctx)
		}
	}
}

func settlePages(ctx context.Context, db *Database, pages <-chan []int64) error {
	conn, err := db.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	for page := range pages {
		if _, err := conn.Exec(ctx, "UPDATE events.outbox SET published_at = now() WHERE id = ANY ($1)", page); err != nil {
			return err
		}
	}
	return nil
}
