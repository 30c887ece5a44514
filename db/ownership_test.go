package db_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestOwnerSession(t *testing.T) {
	t.Parallel()
	look := func(db eventsdb.DBTX) (eventsdb.OwnerSessionRow, error) {
		return eventsdb.New(db).OwnerSession(t.Context(), eventsdb.OwnerSessionParams{
			ApplicationPrefix: pgnames.OwnerApplication, LockKey: int64(pgnames.OwnerLock),
		})
	}
	// owner returns the session of an application that owns the outbox.
	owner := func(t *testing.T, db *pgtest.DB, application string) *pgx.Conn {
		t.Helper()
		conn := db.Connect(t)
		exec(t, conn, "SET application_name = '"+application+"'")
		if got := must(eventsdb.New(conn).TryOwn(t.Context(), pgnames.OwnerLock))(t); !got.Owned {
			t.Fatal("not owned")
		}
		return conn
	}

	t.Run("there is none while nobody owns the outbox", func(t *testing.T) {
		t.Parallel()
		if got, err := look(pgtest.Database(t).Pool); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("%+v, error %v", got, err)
		}
	})

	t.Run("it is a worker's by its application, whatever follows the role", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		conn := owner(t, db, "outbox/owner billing")
		if got := must(look(db.Pool))(t); got.Pid != int32(conn.PgConn().PID()) || !got.Worker || !got.Ours || got.Application != "outbox/owner billing" {
			t.Errorf("%+v", got)
		}
	})

	t.Run("another role sees whose it is, and that it is not to be ended by it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		conn, role := owner(t, db, pgnames.OwnerApplication), "stranger_"+db.Name
		exec(t, db.Pool, "CREATE ROLE "+role, "GRANT USAGE ON SCHEMA events TO "+role)
		defer exec(t, db.Pool, "DROP OWNED BY "+role, "DROP ROLE "+role)
		stranger := db.Connect(t)
		exec(t, stranger, "SET ROLE "+role)
		got, err := look(stranger)
		if err != nil || got.Pid != int32(conn.PgConn().PID()) || got.UserName == "" || !got.Worker || got.Ours {
			t.Errorf("%+v, error %v", got, err)
		}
		exec(t, stranger, "RESET ROLE")
	})

	t.Run("another that holds the lock is none", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		conn := owner(t, db, "app")
		if got := must(look(db.Pool))(t); got.Pid != int32(conn.PgConn().PID()) || got.Worker || got.Ours || got.Application != "app" {
			t.Errorf("%+v", got)
		}
	})

	t.Run("it is idle between two statements, and in a transaction", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		conn := owner(t, db, pgnames.OwnerApplication)
		for _, statement := range []string{"SELECT", "BEGIN"} {
			exec(t, conn, statement)
			if got := must(look(db.Pool))(t); got.IdleS <= 0 {
				t.Errorf("after %s: %+v", statement, got)
			}
		}
	})

	t.Run("it is not idle during a statement, however long", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		conn := owner(t, db, pgnames.OwnerApplication)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = conn.Exec(t.Context(), "SELECT pg_sleep(60)") // is ended below
		}()
		working := "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep')"
		eventually(t, "the session works", func() bool { return value[bool](t, db.Pool, working, conn.PgConn().PID()) })
		if got := must(look(db.Pool))(t); got.IdleS != 0 {
			t.Errorf("%+v", got)
		}
		exec(t, db.Pool, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")
		<-done
	})
}
