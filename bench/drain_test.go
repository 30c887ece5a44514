package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	outbox "github.com/seed-9a365b49/outbox"
)

const (
	// drainEvents is the backlog.
	drainEvents = 100_000
	// floorPage and floorSettlers are the best of a bare loop: more of either gained nothing.
	floorPage     = 1000
	floorSettlers = 2
)

// BenchmarkDrain measures how fast a backlog is worked off: see the package's documentation.
func BenchmarkDrain(b *testing.B) {
	for _, bytes := range []int{20, 800} {
		for _, aggregates := range []int{1, 100, 100_000} {
			b.Run(fmt.Sprintf("bytes=%d/aggregates=%d", bytes, aggregates), func(b *testing.B) {
				compareDrains(b, aggregates, bytes)
			})
		}
	}
}

func compareDrains(b *testing.B, aggregates, bytes int) {
	var worker, floor time.Duration
	rounds := 0
	for b.Loop() {
		floor += drained(b, aggregates, bytes, drainByLoop)
		worker += drained(b, aggregates, bytes, drainByWorker)
		rounds++
	}
	total := float64(rounds * drainEvents)
	b.ReportMetric(total/worker.Seconds(), "events/s")
	b.ReportMetric(total/floor.Seconds(), "floor-events/s")
	b.ReportMetric(floor.Seconds()/worker.Seconds(), "ratio")
}

// drained measures one drain of a fresh database.
func drained(b *testing.B, aggregates, bytes int, drain func(*testing.B, *database) time.Duration) time.Duration {
	b.Helper()
	db, drop := newDatabase(b)
	defer drop()
	db.preload(b, drainEvents, aggregates, bytes)
	took := drain(b, db)
	if n := db.unpublished(b); n != 0 {
		b.Fatalf("%d events were left unpublished", n)
	}
	return took
}

// drainByWorker returns the time from the first event handled until the last one is settled.
func drainByWorker(b *testing.B, db *database) time.Duration {
	b.Helper()
	var handled atomic.Int64
	var began atomic.Pointer[time.Time]
	w, stop := startWorker(b, db.url, func(context.Context, *outbox.Event) error {
		if handled.Add(1) == 1 {
			now := time.Now()
			began.Store(&now)
		}
		return nil
	})
	waitIdle(b, w, func() bool { return handled.Load() >= drainEvents && began.Load() != nil })
	took := time.Since(*began.Load())
	stop()
	if n := handled.Load(); n != drainEvents {
		b.Errorf("%d events were handled %d times", drainEvents, n)
	}
	return took
}

// drainByLoop is the floor: one connection fetches pages, two others mark them as published.
func drainByLoop(b *testing.B, db *database) time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	pages := make(chan []int64, floorSettlers)
	var settling sync.WaitGroup
	errs := make(chan error, floorSettlers)
	for range floorSettlers {
		conn := db.connect(b)
		settling.Go(func() {
			if err := settlePages(ctx, conn, pages); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	var began time.Time
	_, err := fetchPages(ctx, db.connect(b), func(page []int64) bool {
		if began.IsZero() {
			began = time.Now()
		}
		select {
		case pages <- page:
			return true
		case <-ctx.Done():
			return false
		}
	})
	close(pages)
	settling.Wait()
	took := time.Since(began)
	select {
	case err = <-errs:
	default:
	}
	if err != nil {
		b.Fatal(err)
	}
	return took
}

// fetchPages reads all unpublished events in pages, in id order, as far as use wants them.
func fetchPages(ctx context.Context, conn *pgx.Conn, use func(ids []int64) bool) (n int, err error) {
	var last int64
	for {
		rows, err := conn.Query(ctx, `
			SELECT id, aggregate_type, aggregate_id, event_type, payload, occurred_at FROM events.outbox
			WHERE published_at IS NULL AND id > $1 ORDER BY id LIMIT $2`, last, floorPage)
		if err != nil {
			return n, err
		}
		page := make([]int64, 0, floorPage)
		var e outbox.Event
		_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.AggregateType, &e.AggregateID, &e.Type, &e.Data, &e.OccurredAt}, func() error {
			page = append(page, e.ID)
			return nil
		})
		n += len(page)
		if err != nil || len(page) == 0 || !use(page) {
			return n, err
		}
		last = page[len(page)-1]
	}
}

func settlePages(ctx context.Context, conn *pgx.Conn, pages <-chan []int64) error {
	for page := range pages {
		if _, err := conn.Exec(ctx, "UPDATE events.outbox SET published_at = now() WHERE id = ANY ($1)", page); err != nil {
			return err
		}
	}
	return nil
}
