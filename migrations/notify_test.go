package migrations_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

// ear is a session that listens on the channel of the trigger.
type ear struct {
	conn *pgx.Conn
	db   *pgtest.DB
}

func listen(t *testing.T, db *pgtest.DB) *ear {
	t.Helper()
	e := &ear{conn: db.Connect(t), db: db}
	if _, err := e.conn.Exec(t.Context(), "LISTEN "+pgnames.WakeChannel+"; LISTEN the_end"); err != nil {
		t.Fatal(err)
	}
	return e
}

// heard returns how many notifications have been committed since the last call. They arrive in the order of their
// commits, so whatever came before one that is sent now has arrived with it.
func (e *ear) heard(t *testing.T) (count int) {
	t.Helper()
	exec(t, e.db, "NOTIFY the_end")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		n, err := e.conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n.Channel == "the_end" {
			return count
		}
		if n.Payload != "" {
			t.Errorf("payload %q, want none", n.Payload)
		}
		count++
	}
}

func TestNotify(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	e := listen(t, db)
	if err := migrations.SetNotify(t.Context(), config(t, db), migrations.NotifyAlways); err != nil {
		t.Fatal(err)
	}
	// Every list of statements is one transaction.
	rows := func(n int, condition string) string {
		return fmt.Sprintf(`INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', gen_random_uuid(), 'Placed', '{}' FROM generate_series(1, %d) %s`, n, condition)
	}
	cases := []struct {
		name       string
		statements []string
		want       int
	}{
		{"one for one event", []string{insert}, 1},
		{"one for many events of one statement", []string{rows(1000, "")}, 1},
		{"one for several statements of one transaction", []string{insert, rows(3, ""), insert}, 1},
		{"one for an INSERT within a query", []string{"WITH new AS (" + insert + " RETURNING id) SELECT * FROM new"}, 1},
		{"one for MERGE", []string{`MERGE INTO events.outbox o USING (SELECT -1 AS id) n ON o.id = n.id WHEN NOT MATCHED THEN
			INSERT (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', gen_random_uuid(), 'Placed', '{}')`}, 1},
		{"one where the session has no search path", []string{"SET LOCAL search_path = ''", insert}, 1},
		{"one where the session hides pg_catalog's functions", []string{
			"CREATE SCHEMA evil; CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''evil''; END'",
			"SET LOCAL search_path = evil, pg_catalog", insert,
		}, 1},
		{"one for a savepoint that is kept", []string{"SAVEPOINT s", insert, "RELEASE s"}, 1},
		{"one for what is left of a transaction with a savepoint taken back", []string{insert, "SAVEPOINT s", insert, "ROLLBACK TO s"}, 1},
		{"none for a savepoint taken back", []string{"SAVEPOINT s", insert, "ROLLBACK TO s"}, 0},
		{"none for a transaction rolled back", []string{insert, "ROLLBACK"}, 0},
		{"none for an INSERT … SELECT without a row", []string{rows(1, "WHERE false")}, 0},
		{"none for ON CONFLICT DO NOTHING", []string{`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
			SELECT max(id), 'order', gen_random_uuid(), 'Placed', '{}' FROM events.outbox ON CONFLICT DO NOTHING`}, 0},
		{"none for marks", []string{"UPDATE events.outbox SET published_at = now()", "DELETE FROM events.outbox WHERE published_at < now() - interval '30 days'"}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tx, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			for _, statement := range c.statements {
				if _, err := tx.Exec(t.Context(), statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
			if rolledBack := c.statements[len(c.statements)-1] == "ROLLBACK"; !rolledBack {
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := e.heard(t); got != c.want {
				t.Errorf("%d notifications, want %d", got, c.want)
			}
		})
	}

	t.Run("one for each transaction", func(t *testing.T) {
		exec(t, db, insert, insert, insert)
		if got := e.heard(t); got != 3 {
			t.Errorf("%d notifications, want 3", got)
		}
	})

	for name, c := range map[string]struct{ rows, want int }{"one for COPY": {3, 1}, "none for COPY of nothing": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			source := pgx.CopyFromSlice(c.rows, func(int) ([]any, error) {
				return []any{"order", [16]byte{1}, "Placed", "{}"}, nil
			})
			_, err := db.Pool.CopyFrom(t.Context(), pgx.Identifier{"events", "outbox"},
				[]string{"aggregate_type", "aggregate_id", "event_type", "payload"}, source)
			if err != nil {
				t.Fatal(err)
			}
			if got := e.heard(t); got != c.want {
				t.Errorf("%d notifications, want %d", got, c.want)
			}
		})
	}

	t.Run("one for a role that has no other right than to insert", func(t *testing.T) {
		role := db.Name + "_publisher"
		exec(t, db, "BEGIN; CREATE ROLE "+role+
			"; GRANT USAGE ON SCHEMA events, public TO "+role+
			"; GRANT USAGE ON SEQUENCE events.outbox_id_seq TO "+role+
			"; GRANT INSERT (aggregate_type, aggregate_id, event_type, payload) ON events.outbox TO "+role+
			"; REVOKE EXECUTE ON FUNCTION events.outbox_notify FROM PUBLIC"+
			"; SET LOCAL ROLE "+role+"; SET LOCAL search_path = ''; "+insert+
			"; RESET ROLE; DROP OWNED BY "+role+"; DROP ROLE "+role+"; COMMIT")
		if got := e.heard(t); got != 1 {
			t.Errorf("%d notifications, want 1", got)
		}
	})

	t.Run("none with the trigger switched off, until it is on again", func(t *testing.T) {
		exec(t, db, "ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify", insert)
		if got := e.heard(t); got != 0 {
			t.Errorf("off: %d notifications, want 0", got)
		}
		up(t, db)
		exec(t, db, insert)
		if got := e.heard(t); got != 0 {
			t.Errorf("off, after Up: %d notifications, want 0", got)
		}
		exec(t, db, "ALTER TABLE events.outbox ENABLE TRIGGER outbox_notify", insert)
		if got := e.heard(t); got != 1 {
			t.Errorf("on: %d notifications, want 1", got)
		}
	})
}
