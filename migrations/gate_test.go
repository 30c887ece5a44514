package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/temppg"
	"github.com/seed-9a365b49/outbox/migrations"
)

// sleeper is a session that closes the gate, as a sleeping worker does.
type sleeper struct{ conn *pgx.Conn }

// closes tells whether it closed the gate.
func (s sleeper) closes(t *testing.T) (closed bool) {
	t.Helper()
	if err := s.conn.QueryRow(t.Context(), "SELECT events.outbox_close_gate()").Scan(&closed); err != nil {
		t.Fatal(err)
	}
	return closed
}

// opens tells whether the gate was closed by it.
func (s sleeper) opens(t *testing.T) (was bool) {
	t.Helper()
	const sql = "SELECT pg_advisory_unlock($1, 'events.outbox'::regclass::oid::int)"
	if err := s.conn.QueryRow(t.Context(), sql, pgnames.GateLock).Scan(&was); err != nil {
		t.Fatal(err)
	}
	return was
}

func TestGate(t *testing.T) {
	t.Parallel()
	// open begins a transaction that runs statements, on a session of its own.
	open := func(t *testing.T, db *pgtest.DB, statements ...string) pgx.Tx {
		t.Helper()
		tx, err := db.Connect(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range statements {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		return tx
	}
	end := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	t.Run("publishers notify while it is closed, and only then", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		e, s := listen(t, db), sleeper{db.Connect(t)}
		for range 2 {
			exec(t, db, insert, insert)
			if n := e.heard(t); n != 0 {
				t.Errorf("open: %d notifications", n)
			}
			if !s.closes(t) {
				t.Fatal("nobody publishes, and it does not close")
			}
			exec(t, db, insert, insert)
			if n := e.heard(t); n != 2 {
				t.Errorf("closed: %d notifications for 2 transactions", n)
			}
			if !s.opens(t) {
				t.Error("it was not closed by its own session")
			}
		}
	})
	for how, end := range map[string]func(context.Context, pgx.Tx) error{
		"commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		t.Run("it does not close before a silent publisher's "+how, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			s := sleeper{db.Connect(t)}
			tx := open(t, db, insert)
			for range 2 {
				if s.closes(t) {
					t.Fatal("it closed")
				}
			}
			if err := end(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			if !s.closes(t) {
				t.Error("it does not close after that")
			}
		})
	}
	t.Run("a publisher whose savepoint is taken back is none", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		open(t, db, "SAVEPOINT a", insert, "ROLLBACK TO a")
		if !(sleeper{db.Connect(t)}).closes(t) {
			t.Error("it does not close")
		}
	})
	t.Run("a publisher that was silent stays so in its transaction", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		e, s := listen(t, db), sleeper{db.Connect(t)}
		tx := open(t, db, insert)
		closed := make(chan error, 1)
		go func() { // what outbox_close_gate does, without its limit of 200 ms
			_, err := s.conn.Exec(context.Background(), "SELECT pg_advisory_lock($1, 'events.outbox'::regclass::oid::int)", pgnames.GateLock)
			closed <- err
		}()
		eventually(t, db, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid::bigint = $1)", int64(pgnames.GateLock))
		if _, err := tx.Exec(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		exec(t, db, insert) // somebody else's, who sees that the worker is about to sleep
		if n := e.heard(t); n != 1 {
			t.Errorf("%d notifications, want that of the other publisher", n)
		}
		end(t, tx.Commit(t.Context()))
		end(t, <-closed)
	})
	t.Run("nobody needs a right to advisory locks, but the owner of the trigger function", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		owner, publisher := db.Name+"_owner", db.Name+"_publisher"
		const functions = "FUNCTION pg_try_advisory_xact_lock_shared(integer, integer), pg_notify(text, text)"
		exec(t, db, "CREATE ROLE "+owner+" LOGIN", "CREATE ROLE "+publisher, "CREATE SCHEMA events AUTHORIZATION "+owner,
			"REVOKE EXECUTE ON "+functions+" FROM PUBLIC")
		t.Cleanup(func() {
			_, err := db.Pool.Exec(context.Background(), "DROP OWNED BY "+owner+", "+publisher+"; DROP ROLE "+owner+", "+publisher)
			if err != nil {
				t.Error(err)
			}
		})
		as := config(t, db)
		as.User = owner
		err := migrations.Up(t.Context(), as, nil)
		if sqlState(err) != "42501" || !strings.Contains(err.Error(), "GRANT EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_xact_lock_shared(integer, integer) TO "+owner) {
			t.Fatalf("without the right: %v, want what to grant", err)
		}
		exec(t, db, "GRANT EXECUTE ON "+functions+" TO "+owner)
		if err := migrations.Up(t.Context(), as, nil); err != nil {
			t.Fatal(err)
		}
		exec(t, db, "GRANT USAGE ON SCHEMA events TO "+publisher,
			"GRANT USAGE ON SEQUENCE events.outbox_id_seq TO "+publisher,
			"GRANT INSERT (aggregate_type, aggregate_id, event_type, payload) ON events.outbox TO "+publisher,
			"BEGIN; SET LOCAL ROLE "+publisher+"; "+strings.ReplaceAll(insert, "gen_random_uuid()", "'00000000-0000-0000-0000-000000000001'")+"; COMMIT")
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != 1 {
			t.Errorf("%d events", n)
		}
	})
}

func TestNotifyModes(t *testing.T) {
	t.Parallel()

	set := func(t *testing.T, db *pgtest.DB, mode migrations.NotifyMode) {
		t.Helper()
		if err := migrations.SetNotify(t.Context(), config(t, db), mode); err != nil {
			t.Fatal(err)
		}
		if got, err := migrations.Notify(t.Context(), config(t, db)); err != nil || got != mode {
			t.Fatalf("the mode is %q (%v), want %q", got, err, mode)
		}
	}

	t.Run("it can be changed back and forth", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		e, s := listen(t, db), sleeper{db.Connect(t)}
		if mode, err := migrations.Notify(t.Context(), config(t, db)); err != nil || mode != migrations.NotifyGated {
			t.Errorf("at first it is %q (%v), want gated", mode, err)
		}
		for _, c := range []struct {
			mode         migrations.NotifyMode
			open, closed int // notifications of a transaction
		}{{migrations.NotifyAlways, 1, 1}, {migrations.NotifyGated, 0, 1}, {migrations.NotifyOff, 0, 0}, {migrations.NotifyGated, 0, 1}} {
			set(t, db, c.mode)
			exec(t, db, insert)
			if n := e.heard(t); n != c.open {
				t.Errorf("%s, open: %d notifications, want %d", c.mode, n, c.open)
			}
			s.closes(t)
			exec(t, db, insert)
			if n := e.heard(t); n != c.closed {
				t.Errorf("%s, closed: %d notifications, want %d", c.mode, n, c.closed)
			}
			s.opens(t)
		}
	})
	t.Run("whoever has inserted and not committed does not hold it up", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		tx, err := db.Connect(t).Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), insert)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range migrations.NotifyModes {
			set(t, db, mode)
		}
	})
	t.Run("it outlives the next migration, and switches on a trigger that was switched off", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		exec(t, db, "ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify")
		if mode, err := migrations.Notify(t.Context(), config(t, db)); err != nil || mode != migrations.NotifyOff {
			t.Errorf("with the trigger off it is %q (%v)", mode, err)
		}
		set(t, db, migrations.NotifyAlways)
		exec(t, db, "ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify")
		down(t, db, migrations.NotifyVersion-1)
		up(t, db)
		if mode, err := migrations.Notify(t.Context(), config(t, db)); err != nil || mode != migrations.NotifyOff {
			t.Errorf("after down and up it is %q (%v), want off", mode, err)
		}
	})
	t.Run("an unknown mode changes nothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		err := migrations.SetNotify(t.Context(), config(t, db), "sometimes")
		if sqlState(err) != "22023" || !strings.Contains(err.Error(), "want gated, always or off") {
			t.Errorf("%v", err)
		}
		if mode, err := migrations.Notify(t.Context(), config(t, db)); err != nil || mode != migrations.NotifyGated {
			t.Errorf("now it is %q (%v)", mode, err)
		}
	})
	t.Run("without a schema, or an old one, the error says what to do", func(t *testing.T) {
		t.Parallel()
		for name, db := range map[string]*pgtest.DB{"none": pgtest.EmptyDatabase(t), "old": pgtest.Database(t)} {
			if name == "old" {
				down(t, db, migrations.NotifyVersion-1)
			}
			if _, err := migrations.Notify(t.Context(), config(t, db)); !errors.Is(err, migrations.ErrNoModes) {
				t.Errorf("%s: %v", name, err)
			}
			if err := migrations.SetNotify(t.Context(), config(t, db), migrations.NotifyOff); !errors.Is(err, migrations.ErrNoModes) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestNotifyAndTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	server := pgtest.Cluster(t, func(o *temppg.Options) { o.Settings = map[string]string{"max_prepared_transactions": "5"} })
	db := pgtest.DatabaseOn(t, server)
	session := db.Connect(t)
	run := func(statements ...string) (err error) {
		for _, statement := range statements {
			if _, err = session.Exec(t.Context(), statement); err != nil {
				return err
			}
		}
		return nil
	}
	s := sleeper{db.Connect(t)}
	s.closes(t)
	if err := run("BEGIN", insert, "PREPARE TRANSACTION 'one'"); sqlState(err) != "0A000" {
		t.Errorf("while a worker sleeps: %v, want SQLSTATE 0A000", err)
	}
	s.opens(t)
	if err := run("ROLLBACK", "BEGIN", insert, "PREPARE TRANSACTION 'one'"); err != nil {
		t.Fatalf("while none sleeps: %v", err)
	}
	if s.closes(t) {
		t.Error("a prepared transaction does not keep the worker awake")
	}
	if err := run("COMMIT PREPARED 'one'"); err != nil {
		t.Fatal(err)
	}
	if !s.closes(t) {
		t.Error("the worker is still kept awake")
	}
	if err := migrations.SetNotify(t.Context(), config(t, db), migrations.NotifyOff); err != nil {
		t.Fatal(err)
	}
	if err := run("BEGIN", insert, "PREPARE TRANSACTION 'two'", "COMMIT PREPARED 'two'"); err != nil {
		t.Errorf("with notifications off: %v", err)
	}
	if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	if err := migrations.Up(t.Context(), config(t, db), nil); err != nil {
		t.Errorf("Up with notifications off: %v", err)
	}
}
