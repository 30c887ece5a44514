package migrations_test

import (
	_ "embed"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience is how long a test waits for what has to happen.
const patience = 30 * time.Second

// specification is the SQL of the specification, as a service may have run it.
//
//go:embed testdata/specification.sql
var specification string

const (
	checkViolation = "23514"
	insert         = `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('order', '00000000-0000-0000-0000-000000000001', 'Placed', '{}')`
)

func config(t *testing.T, db *pgtest.DB) *pgx.ConnConfig {
	t.Helper()
	c, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func up(t *testing.T, db *pgtest.DB) {
	t.Helper()
	if err := migrations.Up(t.Context(), config(t, db), nil); err != nil {
		t.Fatalf("Up: %v", err)
	}
}

// down takes migrations back until the schema has a version.
func down(t *testing.T, db *pgtest.DB, version int) {
	t.Helper()
	for range migrations.Latest - version {
		if _, err := migrations.Down(t.Context(), config(t, db)); err != nil {
			t.Fatalf("Down: %v", err)
		}
	}
}

func exec(t *testing.T, db *pgtest.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.Pool.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// query returns the only value of a query.
func query[T any](t *testing.T, db *pgtest.DB, sql string, args ...any) (value T) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// eventually waits until a query returns true.
func eventually(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		if !query[bool](t, db, sql, args...) {
			return errors.New(sql)
		}
		return nil
	})
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// catalog describes everything in the database that is not PostgreSQL's, one object a line.
func catalog(t *testing.T, db *pgtest.DB) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `
		WITH schema AS (
			SELECT oid, nspname::text AS name FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'
		), relation AS (
			SELECT c.*, s.name || '.' || c.relname AS name FROM pg_class c JOIN schema s ON s.oid = c.relnamespace
		)
		SELECT concat_ws(' ', 'schema', name, obj_description(oid, 'pg_namespace')) FROM schema
		UNION ALL
		SELECT concat_ws(' ', 'relation', name, relkind, relpersistence, reloptions) FROM relation
		UNION ALL
		SELECT concat_ws(' ', 'column', r.name, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attstattarget, pg_get_expr(d.adbin, d.adrelid))
		FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
		UNION ALL
		SELECT concat_ws(' ', pg_get_indexdef(i.indexrelid), i.indisvalid) FROM pg_index i JOIN relation r ON r.oid = i.indexrelid
		UNION ALL
		SELECT concat_ws(' ', 'constraint', r.name, c.conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c JOIN relation r ON r.oid = c.conrelid
		UNION ALL
		SELECT concat_ws(' ', pg_get_triggerdef(g.oid), g.tgenabled) FROM pg_trigger g JOIN relation r ON r.oid = g.tgrelid WHERE NOT g.tgisinternal
		UNION ALL
		SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN schema s ON s.oid = p.pronamespace
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// assertCatalog fails with the lines by which two catalogs differ.
func assertCatalog(t *testing.T, want, got []string) {
	t.Helper()
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("missing: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("unexpected: %s", line)
		}
	}
}

// assertOneLine fails unless err is one line that contains all of want.
func assertOneLine(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %v", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
}
