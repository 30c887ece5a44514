package admin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

const (
	isOld   = "published_at = now() - interval '31 days'"
	isYoung = "published_at = now() - interval '29 days'"
)

// archiving adds four old events and starts an archive, which has deleted the first and pauses. stop ends it.
func archiving(t *testing.T, db *pgtest.DB) (stop func() (admin.Archived, error)) {
	t.Helper()
	for i := range 4 {
		add(t, db, byte(i), isOld)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var n admin.Archived
	ended := make(chan error, 1)
	go func() {
		var err error
		n, err = admin.Archive(ctx, db.Pool, admin.ArchiveOptions{BatchSize: 1, Pause: time.Hour})
		ended <- err
	}()
	pgtest.Eventually(t, func() error {
		if left := value[int](t, db, "SELECT count(*) FROM events.outbox"); left != 3 {
			return fmt.Errorf("%d events are left", left)
		}
		return nil
	})
	return func() (admin.Archived, error) {
		cancel()
		err := <-ended
		return n, err
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()

	t.Run("exactly what was published before the retention is deleted, whatever lies between", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		states := []string{isOld, isYoung, isPending, isRetrying, isDead}
		rapid.Check(t, func(rt *rapid.T) {
			exec(t, db, "TRUNCATE events.outbox CASCADE")
			old := 0
			// Fewer than ten ranges, so that the walk reads all of them.
			for i, which := range rapid.SliceOfN(rapid.IntRange(0, len(states)-1), 1, 27).Draw(rt, "states") {
				add(t, db, byte(i), states[which])
				if which == 0 {
					old++
				}
			}
			o := admin.ArchiveOptions{BatchSize: 3, Pause: -1}
			o.DryRun = true
			if n, err := admin.Archive(t.Context(), db.Pool, o); err != nil || n.Events != int64(old) {
				rt.Fatalf("dry run: %v (%v), want %d", n, err, old)
			}
			before := value[int](t, db, "SELECT count(*) FROM events.outbox")
			o.DryRun = false
			if n, err := admin.Archive(t.Context(), db.Pool, o); err != nil || n.Events != int64(old) {
				rt.Fatalf("archived %v (%v), want %d", n, err, old)
			}
			if left := value[int](t, db, "SELECT count(*) FROM events.outbox"); left != before-old {
				rt.Fatalf("%d are left, want %d", left, before-old)
			}
			if n := value[int](t, db, "SELECT count(*) FROM events.outbox WHERE published_at < now() - interval '30 days'"); n != 0 {
				rt.Fatalf("%d old ones are left", n)
			}
		})
	})

	t.Run("dead letters where it begins do not end it, and young events do", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		series := func(n int, state string) {
			exec(t, db, fmt.Sprintf(`WITH new AS (INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, published_at, next_retry_at)
				SELECT 'order', gen_random_uuid(), 'Placed', '{}', %s FROM generate_series(1, %d) RETURNING id) SELECT count(*) FROM new`, state, n))
		}
		series(200, "NULL, 'infinity'")
		series(50, "now() - interval '31 days', NULL")
		series(200, "now(), NULL")
		series(1, "now() - interval '31 days', NULL") // out of order, further than ten ranges: for the next time
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{BatchSize: 10, Pause: -1}); err != nil || n.Events != 50 || n.StoppedAt == nil || *n.StoppedAt != 350 {
			t.Errorf("archived %v (%v), want 50 up to 350", n, err)
		}
		exec(t, db, "TRUNCATE events.outbox CASCADE")
		series(200, "'infinity', NULL") // no time at all
		series(1, "now() - interval '31 days', NULL")
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{BatchSize: 10, Pause: -1}); err != nil || n.Events != 1 || n.StoppedAt != nil {
			t.Errorf("archived %v (%v), want 1, of all", n, err)
		}
	})

	t.Run("two never work at the same time", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		add(t, db, 1, isOld)
		tx, err := db.Connect(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1, 'events.outbox'::regclass::oid::int)", pgnames.ArchiveLock); err != nil {
			t.Fatal(err)
		}
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{}); n.Events != 0 || !errors.Is(err, admin.ErrArchiving) {
			t.Errorf("archived %v (%v)", n, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{}); n.Events != 1 || err != nil {
			t.Errorf("after that %v (%v)", n, err)
		}
	})

	t.Run("it has the lock in its pauses, and a dry run needs none", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		stop := archiving(t, db)
		pgtest.Eventually(t, func() error {
			if !value[bool](t, db, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE l.locktype = 'advisory' AND l.classid::bigint = $1 AND a.backend_xmin IS NULL AND a.datname = current_database())`, int64(pgnames.ArchiveLock)) {
				return errors.New("it has no lock, or a snapshot besides")
			}
			return nil
		})
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{BatchSize: 1}); n.Events != 0 || !errors.Is(err, admin.ErrArchiving) {
			t.Errorf("archived %v (%v)", n, err)
		}
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{DryRun: true}); n.Events != 3 || err != nil {
			t.Errorf("a dry run finds %v of 3 (%v)", n, err)
		}
		if _, err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})

	t.Run("its pauses are longer than the server lets transactions idle", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		for i := range 3 {
			add(t, db, byte(i), isOld)
		}
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), "SET idle_in_transaction_session_timeout = 500"); err != nil {
			t.Fatal(err)
		}
		if n, err := admin.Archive(t.Context(), conn, admin.ArchiveOptions{BatchSize: 1, Pause: 1500 * time.Millisecond}); err != nil || n.Events != 3 {
			t.Errorf("archived %v (%v)", n, err)
		}
	})

	t.Run("what somebody else has locked is left for the next time", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		locked := add(t, db, 1, isOld)
		add(t, db, 2, isOld)
		tx, err := db.Connect(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT FROM events.outbox WHERE id = $1 FOR UPDATE", locked); err != nil {
			t.Fatal(err)
		}
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{}); n.Events != 1 || err != nil {
			t.Errorf("archived %v (%v)", n, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{}); n.Events != 1 || err != nil {
			t.Errorf("after that %v (%v)", n, err)
		}
	})

	t.Run("events are kept first, and stay where that fails", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		for i := range 7 {
			add(t, db, byte(i), isOld)
		}
		var kept bytes.Buffer
		lines := admin.KeepLines(&kept)
		full := errors.New("disk full")
		keep := func(ctx context.Context, tx pgx.Tx, ids []int64) error {
			if kept.Len() > 0 {
				return full
			}
			return lines(ctx, tx, ids)
		}
		if n, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{BatchSize: 3, Pause: -1, Keep: keep}); n.Events != 3 || !errors.Is(err, full) {
			t.Errorf("archived %v (%v), want 3", n, err)
		}
		if n := strings.Count(kept.String(), "\n"); n != 3 {
			t.Errorf("%d lines", n)
		}
		if n := value[int](t, db, "SELECT count(*) FROM events.outbox"); n != 4 {
			t.Errorf("%d are left, want 4", n)
		}
	})

	t.Run("it can be stopped between two batches", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		if n, err := archiving(t, db)(); n.Events != 1 || !errors.Is(err, context.Canceled) {
			t.Errorf("archived %v, %v", n, err)
		}
	})
}
