package migrations_test

import (
	"context"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

// waiting is true while a migration waits for a lock, for another transaction than the one with the number $1.
const waiting = `SELECT EXISTS (
	SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
	WHERE a.datname = current_database() AND a.application_name = 'outbox/migrate' AND NOT l.granted AND l.virtualtransaction <> $1)`

func TestUpOnALockedTable(t *testing.T) {
	t.Parallel()

	// publish leaves a transaction open that has inserted an event.
	publish := func(t *testing.T, db *pgtest.DB) (commit func()) {
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		if _, err := tx.Exec(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}

	t.Run("lets publishers pass and tries again", func(t *testing.T) {
		t.Parallel()
		db := specified(t)
		commit := publish(t, db)
		result := make(chan error, 1)
		go func() { result <- migrations.Up(t.Context(), config(t, db), nil) }()
		eventually(t, db, waiting, "")
		first := query[string](t, db, `SELECT virtualtransaction FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE a.datname = current_database() AND a.application_name = 'outbox/migrate' AND NOT l.granted`)
		eventually(t, db, waiting, first)
		commit()
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})

	t.Run("gives up with a clear line, and goes on from there the next time", func(t *testing.T) {
		t.Parallel()
		db := specified(t)
		commit := publish(t, db)
		err := migrations.UpOnce(t.Context(), config(t, db))
		assertOneLine(t, err, "events.outbox stayed locked by other sessions", "migrate again when long transactions have ended")
		if sqlState(err) != "55P03" {
			t.Errorf("SQLSTATE %q, want 55P03", sqlState(err))
		}
		if version := query[int](t, db, "SELECT events.outbox_schema_version()"); version != 2 {
			t.Errorf("version %d, want 2: the first that needs the lock is 00003_invariants.sql", version)
		}
		commit()
		up(t, db)
	})

	t.Run("does not wait where the table need not be changed", func(t *testing.T) {
		t.Parallel()
		db := specified(t)
		up(t, db)
		publish(t, db)
		up(t, db)
	})
}

func TestUpAfterAnIndexWasCutOff(t *testing.T) {
	t.Parallel()
	db := specified(t)
	const valid = "SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'events.outbox'::regclass"

	// An index that is built concurrently waits for every older snapshot before it becomes valid.
	old, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(context.Background()) }()
	if _, err := old.Exec(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- migrations.Up(ctx, config(t, db), nil) }()
	eventually(t, db, "SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = 'events.outbox'::regclass AND NOT indisvalid)")
	eventually(t, db, waiting, "")
	cancel()
	if err := <-result; err == nil {
		t.Fatal("Up succeeded although it was cut off")
	}
	if query[bool](t, db, valid) {
		t.Fatal("no index is invalid: the test did not cut anything off")
	}

	if err := old.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	up(t, db)
	if !query[bool](t, db, valid) {
		t.Error("an index is still invalid")
	}
	if version := query[int](t, db, "SELECT events.outbox_schema_version()"); version != migrations.Latest {
		t.Errorf("version %d, want %d", version, migrations.Latest)
	}
}

func TestUpWaitsItsTurn(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	other := db.Connect(t)
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock($1)", pgnames.MigrationLock); err != nil {
		t.Fatal(err)
	}
	before := catalog(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- migrations.Up(ctx, config(t, db), nil) }()
	eventually(t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'outbox/migrate' AND query LIKE '%pg_try_advisory_lock%')`)
	cancel()
	assertOneLine(t, <-result, "wait for another process that migrates")
	assertCatalog(t, before, catalog(t, db))

	if err := other.Close(t.Context()); err != nil { // as if that process had been killed
		t.Fatal(err)
	}
	up(t, db)
}
