package pgtest_test

import (
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestDatabase(t *testing.T) {
	for range 5 {
		t.Run("x", func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			var n int
			if err := db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM events.outbox").Scan(&n); err != nil || n != 0 {
				t.Fatal(n, err)
			}
		})
	}
}
