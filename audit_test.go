package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/audit"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// TestWorkerAudits looks at every moment that it can for an event that is published without a copy, or copied without being published.
func TestWorkerAudits(t *testing.T) {
	t.Parallel()

	t.Run("the copy and the mark are there or neither is", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		if _, err := audit.Create(t.Context(), db.Pool); err != nil {
			t.Fatal(err)
		}
		var joined atomic.Int64
		cfg := Config{DatabaseURL: db.URL, Audit: true, OnPublished: func(_ context.Context, _ pgx.Tx, ids []int64) error {
			if joined.Add(1)%3 == 0 {
				return errors.New("not now") // what was copied is taken back
			}
			return nil
		}}
		startWorker(t, cfg, func(w *Worker) {
			w.Subscribe("Placed", "test", HandlerFunc(func(_ context.Context, e *Event) error {
				if e.ID%10 == 0 {
					return Permanent(errors.New("never"))
				}
				return nil
			}))
		})
		const events = 200
		for range events {
			publish1(t, db.Pool, newMessage("Placed"))
		}
		pgtest.Eventually(t, func() error {
			var published, dead, copied, apart int
			err := db.Pool.QueryRow(t.Context(), `SELECT count(o.published_at), count(*) FILTER (WHERE o.next_retry_at = 'infinity'), count(a.outbox_id),
					count(*) FILTER (WHERE (o.published_at IS NULL) <> (a.outbox_id IS NULL))
				FROM events.outbox o FULL JOIN audit.events a ON a.outbox_id = o.id AND a.occurred_at = o.occurred_at AND a.published_at = o.published_at`).
				Scan(&published, &dead, &copied, &apart)
			if err != nil || apart > 0 {
				t.Fatalf("%d are published without a copy, or the other way round (%v)", apart, err)
			}
			if published != events*9/10 || dead != events/10 {
				return fmt.Errorf("%d published, %d dead", published, dead)
			}
			return nil
		})
	})

	t.Run("a table that has gone costs no event an attempt", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		if _, err := audit.Create(t.Context(), db.Pool); err != nil {
			t.Fatal(err)
		}
		events, handler := collect()
		w := startWorker(t, Config{DatabaseURL: db.URL, Audit: true}, func(w *Worker) { w.Subscribe("Placed", "test", handler) })
		if _, err := db.Pool.Exec(t.Context(), "ALTER TABLE audit.events RENAME TO elsewhere"); err != nil {
			t.Fatal(err)
		}
		publish1(t, db.Pool, newMessage("Placed"))
		receive(t, events)
		pgtest.Eventually(t, func() error {
			if h := w.Health(); !h.Degraded || h.Unsettled != 1 || !strings.Contains(h.Reason, "audit.events") {
				return fmt.Errorf("%+v", h)
			}
			return nil
		})
		eventually(t, db.Pool, 1, "published_at IS NULL AND retry_count = 0")
		if _, err := db.Pool.Exec(t.Context(), "ALTER TABLE audit.elsewhere RENAME TO events"); err != nil {
			t.Fatal(err)
		}
		eventually(t, db.Pool, 1, "published_at IS NOT NULL AND retry_count = 0 AND EXISTS (SELECT FROM audit.events a WHERE a.outbox_id = outbox.id)")
		pgtest.Eventually(t, func() error {
			if h := w.Health(); h.Degraded {
				return fmt.Errorf("%+v", h)
			}
			return nil
		})
		if len(events) > 0 {
			t.Error("it was delivered again")
		}
	})

	t.Run("it does not start without the table", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		w, err := NewWorker(Config{DatabaseURL: db.URL, Audit: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Run(t.Context()); !errors.Is(err, audit.ErrNoTable) {
			t.Error(err)
		}
	})
}
