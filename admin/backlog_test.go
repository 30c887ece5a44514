package admin_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func countBacklog(t *testing.T, db *pgtest.DB) (b admin.Backlog, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		b, err = admin.CountBacklog(t.Context(), tx)
		return err
	})
	return b, err
}

func TestCountBacklog(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	empty, err := countBacklog(t, db)
	if err != nil || empty.Pending+empty.Retrying+empty.Due+empty.Dead != 0 || empty.OldestPending != 0 || !empty.PendingWhole {
		t.Errorf("%+v, %v", empty, err)
	}
	add(t, db, 1, isPublished)
	add(t, db, 1, isDead)
	add(t, db, 2, isRetrying)
	add(t, db, 3, "retry_count = 1, next_retry_at = now() - interval '1 hour'")
	oldest := add(t, db, 4, "occurred_at = now() - interval '1 hour'")
	add(t, db, 5, isPending)
	b, err := countBacklog(t, db)
	if err != nil {
		t.Fatal(err)
	}
	if b.Pending != 2 || b.Retrying != 2 || b.Due != 1 || b.Dead != 1 || b.OldestPending != oldest || b.OldestPendingAge < time.Hour || !b.PendingWhole {
		t.Errorf("%+v", b)
	}
	if b.NotifyQueue < 0 || b.NotifyQueue > 1 || b.At.IsZero() {
		t.Errorf("%+v", b)
	}
}
