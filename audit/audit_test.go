package audit_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/audit"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database is one with audit.events.
func database(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.Database(t)
	if made, err := audit.Create(t.Context(), db.Pool); !made || err != nil {
		t.Fatalf("made: %t, %v", made, err)
	}
	return db
}

func exec(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *pgtest.DB, from string, args ...any) (n int) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM "+from, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const (
	isPublished = "now() - interval '31 days', 2, 'no route', now()"
	isPending   = "NULL, 0, NULL, NULL"
	isDead      = "NULL, 10, 'no route', 'infinity'"
)

// add inserts an event in a state.
func add(t *testing.T, db *pgtest.DB, state string) (id int64) {
	t.Helper()
	err := db.Pool.QueryRow(t.Context(), `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, published_at, retry_count, last_error, next_retry_at)
		VALUES ('order', $1, 'Placed', '{"data": {"n": 12345678901234567890}}', `+state+`) RETURNING id`, uuid.New()).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func record(t *testing.T, db *pgtest.DB, ids ...int64) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return audit.Record(t.Context(), tx, ids) }); err != nil {
		t.Fatal(err)
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	db := database(t)
	published, pending, dead := add(t, db, isPublished), add(t, db, isPending), add(t, db, isDead)
	record(t, db, published, pending, dead, 4711)
	exec(t, db, "UPDATE audit.events SET recorded_at = '2020-01-01'")
	record(t, db, published)
	if n := count(t, db, "audit.events"); n != 1 {
		t.Errorf("%d copies, want 1", n)
	}
	// The columns of both tables have the same names but for the id.
	same := `audit.events a JOIN events.outbox o ON o.id = a.outbox_id
		WHERE to_jsonb(a) - 'outbox_id' - 'recorded_at' = to_jsonb(o) - 'id' AND a.recorded_at = '2020-01-01'`
	if n := count(t, db, same); n != 1 {
		t.Error("the copy differs, or was made twice")
	}
}

func TestRecorded(t *testing.T) {
	t.Parallel()
	db := database(t)
	with, without, other := add(t, db, isPublished), add(t, db, isPublished), add(t, db, isPublished)
	record(t, db, with, other)
	exec(t, db, "UPDATE audit.events SET event_type = 'Cancelled' WHERE outbox_id = $1", other) // another event that had the id
	archived, err := admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{Only: audit.Recorded, DryRun: true})
	if err != nil || archived != (admin.Archived{Events: 1, Withheld: 2}) {
		t.Errorf("dry run: %+v, %v", archived, err)
	}
	kept := 0
	keep := func(_ context.Context, _ pgx.Tx, ids []int64) error {
		kept += len(ids)
		return nil
	}
	archived, err = admin.Archive(t.Context(), db.Pool, admin.ArchiveOptions{Only: audit.Recorded, Keep: keep, BatchSize: 1, Pause: -1})
	if err != nil || archived != (admin.Archived{Events: 1, Withheld: 2}) || kept != 1 {
		t.Errorf("archived %+v, %v, kept %d", archived, err, kept)
	}
	if n := count(t, db, "events.outbox WHERE id = ANY ($1)", []int64{without, other}); n != 2 {
		t.Errorf("%d are left without a copy, want 2", n)
	}
}

func TestBackfill(t *testing.T) {
	t.Parallel()
	db := database(t)
	rapid.Check(t, func(rt *rapid.T) {
		exec(t, db, "TRUNCATE events.outbox, audit.events CASCADE")
		states := rapid.SliceOfN(rapid.SampledFrom([]string{isPublished, isPending, isDead}), 0, 20).Draw(rt, "states")
		published := 0
		var recorded []int64
		for _, state := range states {
			id := add(t, db, state)
			if state == isPublished {
				published++
				if rapid.Bool().Draw(rt, "recorded") {
					recorded = append(recorded, id)
				}
			}
		}
		record(t, db, recorded...)
		o := audit.BackfillOptions{BatchSize: 3, Pause: -1, DryRun: true}
		if n, err := audit.Backfill(t.Context(), db.Pool, o); err != nil || n != int64(published-len(recorded)) {
			rt.Fatalf("dry run: %d (%v), want %d", n, err, published-len(recorded))
		}
		o.DryRun = false
		if n, err := audit.Backfill(t.Context(), db.Pool, o); err != nil || n != int64(published-len(recorded)) {
			rt.Fatalf("copied %d (%v), want %d", n, err, published-len(recorded))
		}
		if n, err := audit.Backfill(t.Context(), db.Pool, o); err != nil || n != 0 {
			rt.Fatalf("copied %d again (%v)", n, err)
		}
		if n := count(t, db, "events.outbox o JOIN audit.events a ON a.outbox_id = o.id WHERE o.published_at IS NOT NULL"); n != published || count(t, db, "audit.events") != n {
			rt.Fatalf("%d of %d have a copy", n, published)
		}
	})
}

func TestCreate(t *testing.T) {
	t.Parallel()

	t.Run("many at once make it once", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var group errgroup.Group
		made := make(chan bool, 8)
		for range cap(made) {
			group.Go(func() error {
				one, err := audit.Create(t.Context(), db.Pool)
				made <- one
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		close(made)
		n := 0
		for one := range made {
			if one {
				n++
			}
		}
		if n != 1 {
			t.Errorf("made %d times", n)
		}
	})

	t.Run("a table that something else made is left alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		exec(t, db, "CREATE SCHEMA audit")
		exec(t, db, "CREATE TABLE audit.events (id UUID)")
		if _, err := audit.Create(t.Context(), db.Pool); !errors.Is(err, audit.ErrForeignTable) {
			t.Error(err)
		}
		if err := audit.Check(t.Context(), db.Pool, true, true); !errors.Is(err, audit.ErrForeignTable) {
			t.Error(err)
		}
	})

	t.Run("its script is as good", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		if err := audit.Check(t.Context(), db.Pool, true, true); !errors.Is(err, audit.ErrNoTable) {
			t.Error(err)
		}
		exec(t, db, audit.SQL())
		if err := audit.Check(t.Context(), db.Pool, true, true); err != nil {
			t.Error(err)
		}
		if made, err := audit.Create(t.Context(), db.Pool); made || err != nil {
			t.Errorf("made: %t, %v", made, err)
		}
	})
}
