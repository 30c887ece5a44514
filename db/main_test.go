package db_test

import (
	"errors"
	"testing"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const sequence = "events.outbox_id_seq"

func exec(t *testing.T, db eventsdb.DBTX, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// value returns the only value of a query.
func value[T any](t *testing.T, db eventsdb.DBTX, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// eventually asks again and again until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		if !condition() {
			return errors.New(what)
		}
		return nil
	})
}

// must returns what a query returned.
func must[T any](result T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}
