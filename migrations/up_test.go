package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

func TestUp(t *testing.T) {
	t.Parallel()

	t.Run("makes the schema in an empty database, where an event can be published", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		up(t, db)
		exec(t, db, insert)
		if version := query[int](t, db, "SELECT events.outbox_schema_version()"); version != migrations.Latest {
			t.Errorf("version %d, want %d", version, migrations.Latest)
		}
		if adopted := query[bool](t, db, "SELECT adopted FROM events.outbox_meta"); adopted {
			t.Error("a table made here counts as adopted")
		}
	})

	t.Run("does nothing the second time", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		up(t, db)
		exec(t, db, insert)
		before, namespace := catalog(t, db), query[string](t, db, "SELECT namespace::text FROM events.outbox_meta")
		up(t, db)
		assertCatalog(t, before, catalog(t, db))
		if again := query[string](t, db, "SELECT namespace::text FROM events.outbox_meta"); again != namespace {
			t.Errorf("namespace changed from %s to %s", namespace, again)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})

	t.Run("works for eight processes at once, each migration once, and says so once", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		errs := make([]error, 8)
		var start, done sync.WaitGroup
		var applied atomic.Int32
		start.Add(1)
		for i := range errs {
			own := config(t, db)
			done.Go(func() {
				start.Wait()
				errs[i] = migrations.Up(t.Context(), own, func(string) { applied.Add(1) })
			})
		}
		start.Done()
		done.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		rows, err := db.Pool.Query(t.Context(), "SELECT version_id FROM "+migrations.Table+" ORDER BY id")
		if err != nil {
			t.Fatal(err)
		}
		versions, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			t.Fatal(err)
		}
		if n := applied.Load(); n != migrations.Latest {
			t.Errorf("%d were told as applied, want %d", n, migrations.Latest)
		}
		var want []int
		for version := range migrations.Latest + 1 {
			want = append(want, version)
		}
		if !slices.Equal(versions, want) {
			t.Errorf("goose recorded %v, want %v", versions, want)
		}
	})

	t.Run("works with any search path", func(t *testing.T) {
		t.Parallel()
		for _, path := range []string{"", "events"} {
			db := pgtest.EmptyDatabase(t)
			c := config(t, db)
			c.RuntimeParams["search_path"] = path
			for range 2 {
				if err := migrations.Up(t.Context(), c, nil); err != nil {
					t.Fatalf("search_path %q: %v", path, err)
				}
			}
			if n := query[int](t, db, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 0 {
				t.Errorf("search_path %q: %d tables in public", path, n)
			}
		}
	})

	t.Run("leaves another user of goose alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		service := func() int64 {
			t.Helper()
			conn := stdlib.OpenDB(*config(t, db))
			defer conn.Close()
			return migrateService(t, conn)
		}
		if version := service(); version != 20260101 {
			t.Fatalf("the service's schema is at %d", version)
		}
		before := catalog(t, db)
		up(t, db)
		if version := service(); version != 20260101 {
			t.Errorf("the service's schema is at %d after Up", version)
		}
		if err := migrations.DownAll(t.Context(), config(t, db)); err != nil {
			t.Fatal(err)
		}
		assertCatalog(t, before, catalog(t, db))
	})

	t.Run("says which privilege a role lacks", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		role := db.Name + "_role"
		exec(t, db, "CREATE ROLE "+role)
		t.Cleanup(func() {
			if _, err := db.Pool.Exec(context.Background(), "DROP ROLE "+role); err != nil {
				t.Error(err)
			}
		})
		c := config(t, db)
		c.RuntimeParams["role"] = role
		before := catalog(t, db)
		err := migrations.Up(t.Context(), c, nil)
		assertOneLine(t, err, "create schema events", "the role lacks a privilege", "owner of schema events")
		if sqlState(err) != "42501" {
			t.Errorf("SQLSTATE %q, want 42501", sqlState(err))
		}
		assertCatalog(t, before, catalog(t, db))
	})
}

func TestNewerSchema(t *testing.T) {
	t.Parallel()
	const function = "CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT 99'"
	for name, statement := range map[string]string{
		"by its function":      function,
		"by the record alone":  "INSERT INTO " + migrations.Table + " (version_id, is_applied) VALUES (99, true)",
		"made by another tool": function + "; DROP TABLE " + migrations.Table,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			exec(t, db, statement)
			before := catalog(t, db)
			_, down := migrations.Down(t.Context(), config(t, db))
			steps, status := migrations.Status(t.Context(), config(t, db))
			for what, err := range map[string]error{
				"Up": migrations.Up(t.Context(), config(t, db), nil), "Down": down, "Status": status,
				"DownAll": migrations.DownAll(t.Context(), config(t, db)),
			} {
				if !errors.Is(err, migrations.ErrNewer) {
					t.Errorf("%s: %v, want ErrNewer", what, err)
					continue
				}
				assertOneLine(t, err, "version 99", fmt.Sprintf("this build knows %d", migrations.Latest), "use a newer outbox")
			}
			if len(steps) != migrations.Latest {
				t.Errorf("Status returned %d steps", len(steps))
			}
			assertCatalog(t, before, catalog(t, db))
		})
	}

	t.Run("a migration that was taken back is not newer", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		exec(t, db, "INSERT INTO "+migrations.Table+" (version_id, is_applied) VALUES (99, false)")
		if _, err := migrations.Status(t.Context(), config(t, db)); err != nil {
			t.Error(err)
		}
	})
}

// migrateService is a service that uses goose as its documentation shows, for tables of its own.
func migrateService(t *testing.T, db *sql.DB) (version int64) {
	t.Helper()
	source := fstest.MapFS{"20260101_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE public.orders (id BIGINT);\n-- +goose Down\nDROP TABLE public.orders;\n")}}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, fs.FS(source))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if version, err = provider.GetDBVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	return version
}

func TestStatus(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	c := config(t, db)
	c.RuntimeParams["timezone"] = "Asia/Seoul" // what goose records has no time zone
	before := catalog(t, db)

	steps, err := migrations.Status(t.Context(), c)
	if err != nil || len(steps) != migrations.Latest {
		t.Fatalf("%d steps and error %v, want %d", len(steps), err, migrations.Latest)
	}
	for i, step := range steps {
		if want := fmt.Sprintf("%05d_", i+1); step.Version != int64(i+1) || step.Name[:len(want)] != want || !step.AppliedAt.IsZero() {
			t.Errorf("step %d of an empty database: %+v", i, step)
		}
	}
	assertCatalog(t, before, catalog(t, db))

	began := query[time.Time](t, db, "SELECT clock_timestamp()")
	if err := migrations.Up(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Down(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	ended := query[time.Time](t, db, "SELECT clock_timestamp()")
	if steps, err = migrations.Status(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for _, step := range steps[:migrations.Latest-1] {
		if step.AppliedAt.Before(began) || step.AppliedAt.After(ended) {
			t.Errorf("%s was applied at %s, not between %s and %s", step.Name, step.AppliedAt, began, ended)
		}
	}
	if last := steps[migrations.Latest-1]; !last.AppliedAt.IsZero() {
		t.Errorf("%s is applied after it was taken back", last.Name)
	}
}
