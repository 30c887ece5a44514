package admin_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// What a row can be, as an UPDATE sets it.
const (
	isPending   = ""
	isRetrying  = "retry_count = 1, last_error = 'no route', next_retry_at = now() + interval '1 hour'"
	isDead      = "retry_count = 10, last_error = 'Connection refused', next_retry_at = 'infinity'"
	isPublished = "published_at = now()"
)

// add publishes an event of an aggregate and puts it into a state.
func add(t *testing.T, db *pgtest.DB, aggregate byte, state string) (id int64) {
	t.Helper()
	id = value[int64](t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('order', $1, 'Placed', '{"version": 1, "data": {"n": 12345678901234567890}}') RETURNING id`, uuid.UUID{aggregate})
	if state != isPending {
		exec(t, db, fmt.Sprintf("UPDATE events.outbox SET %s WHERE id = %d", state, id))
	}
	return id
}

func exec(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t *testing.T, db *pgtest.DB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}
