package migrations_test

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestInvariants(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	exec(t, db,
		insert, "UPDATE events.outbox SET published_at = '2026-01-01', retry_count = 3", // event 1: published
		insert, "UPDATE events.outbox SET retry_count = 3 WHERE id = 2", // event 2: not published
	)
	refused := func(sql, message, hint string) func(*testing.T) {
		return func(t *testing.T) {
			before := events(t, db)
			_, err := db.Pool.Exec(t.Context(), sql)
			pg, ok := err.(*pgconn.PgError)
			if !ok || pg.Code != checkViolation || pg.Message != message || pg.Hint != hint {
				t.Fatalf("%s: %#v, want SQLSTATE %s, %q and hint %q", sql, err, checkViolation, message, hint)
			}
			if after := events(t, db); after != before {
				t.Errorf("rows were\n%s\nand are\n%s", before, after)
			}
		}
	}
	const (
		backToNull = "events.outbox: event 1 is published; published_at never goes back to NULL"
		again      = "Insert a new event to send it again."
		falls      = "events.outbox: retry_count of event 2 would fall from 3 to 2; it never falls"
		leave      = "Set next_retry_at to retry an event, and leave retry_count."
	)
	t.Run("published_at never goes back to NULL", refused("UPDATE events.outbox SET published_at = NULL WHERE id = 1", backToNull, again))
	t.Run("not in an upsert either", refused(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
		VALUES (1, 'order', gen_random_uuid(), 'Placed', '{}') ON CONFLICT (id) DO UPDATE SET published_at = NULL`, backToNull, again))
	t.Run("retry_count never falls", refused("UPDATE events.outbox SET retry_count = retry_count - 1 WHERE id = 2", falls, leave))

	t.Run("marking twice keeps the first time, silently, and the rest of the update", func(t *testing.T) {
		tag, err := db.Pool.Exec(t.Context(), "UPDATE events.outbox SET published_at = now(), last_error = 'late' WHERE id = 1")
		if err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("%v, %v", tag, err)
		}
		if !query[bool](t, db, "SELECT published_at = '2026-01-01' AND last_error = 'late' FROM events.outbox WHERE id = 1") {
			t.Errorf("rows: %s", events(t, db))
		}
	})

	// called lists the triggers that an update called.
	called := func(t *testing.T, update string) (names []string) {
		t.Helper()
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		var text []byte
		if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+update).Scan(&text); err != nil {
			t.Fatal(err)
		}
		var plans []struct {
			Triggers []struct {
				Name string `json:"Trigger Name"`
			}
		}
		if err := json.Unmarshal(text, &plans); err != nil {
			t.Fatal(err)
		}
		for _, trigger := range plans[0].Triggers {
			names = append(names, trigger.Name)
		}
		return names
	}
	for name, update := range map[string]string{
		"marking as published":            "UPDATE events.outbox SET published_at = now() WHERE id = 2",
		"marking as published once again": "UPDATE events.outbox SET published_at = now() WHERE id = 1 AND published_at IS NULL",
		"marking for a retry":             "UPDATE events.outbox SET retry_count = retry_count + 1, last_error = 'x', next_retry_at = now() WHERE id = 2",
		"making a dead letter":            "UPDATE events.outbox SET retry_count = GREATEST(retry_count + 1, 10), next_retry_at = 'infinity' WHERE id = 2",
		"redriving":                       "UPDATE events.outbox SET next_retry_at = now() WHERE id = 2",
		"touching a published event":      "UPDATE events.outbox SET last_error = NULL WHERE id = 1",
	} {
		t.Run(name+" calls no trigger", func(t *testing.T) {
			if names := called(t, update); len(names) > 0 {
				t.Errorf("called %q", names)
			}
		})
	}
	t.Run("marking twice without the guard calls one", func(t *testing.T) {
		if names := called(t, "UPDATE events.outbox SET published_at = now() WHERE id = 1"); len(names) != 1 || names[0] != "outbox_keep_published" {
			t.Errorf("called %q, want outbox_keep_published", names)
		}
	})
}
