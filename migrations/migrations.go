// Package migrations makes, changes and describes the schema of the outbox. The SQL files beside
// it are goose migrations, embedded in the binary.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

//go:embed *.sql
var files embed.FS

// Latest is the schema version that this build needs: the number of the newest migration.
const Latest = 8

// Table is where goose records which migrations it applied. It lives in the outbox's own schema,
// so that a service that uses goose for its own tables shares nothing with it.
const Table = "events.outbox_migrations"

// lockTries is how often a DDL statement that found the table locked for 3 s (lock_timeout in the
// files) is tried again, so that a busy table does not fail a deployment.
const lockTries = 5

// ErrForeignTool is returned for a schema that another migration tool made from [SQL].
var ErrForeignTool = errors.New("the outbox schema was applied by another migration tool; change it with that tool (`outbox migrate sql` prints the SQL)")

// ErrNotMigrated is returned by [Down] and [DownAll] where there is nothing to take back.
var ErrNotMigrated = errors.New("the outbox schema is not there: nothing to take back")

// Up applies all migrations that are missing. It is safe when several processes call it at once:
// they wait for one another for up to five minutes. A table events.outbox that was made by the
// specification is adopted; one that differs is refused with the differences.
func Up(ctx context.Context, config *pgx.ConnConfig) error {
	return session(ctx, config, func(ctx context.Context, db *sql.DB) error {
		version, foreign, err := inspect(ctx, db)
		if err != nil {
			return err
		}
		if foreign && version == Latest {
			return nil
		}
		if foreign {
			return fmt.Errorf("schema version %d, this build needs %d: %w", version, Latest, ErrForeignTool)
		}
		if version > Latest {
			return fmt.Errorf("schema version %d is newer than this build (%d): use a newer outbox", version, Latest)
		}
		if err := createSchema(ctx, db); err != nil {
			return err
		}
		for try := 1; ; try++ {
			// A provider whose first call failed stays failed: a new one for each try.
			provider, err := newProvider(db)
			if err != nil {
				return err
			}
			_, err = provider.Up(ctx)
			if err == nil || try == lockTries || !isLockTimeout(err) {
				return describe(err)
			}
		}
	})
}

// Down takes back the newest applied migration and returns its name.
func Down(ctx context.Context, config *pgx.ConnConfig) (name string, err error) {
	err = session(ctx, config, func(ctx context.Context, db *sql.DB) error {
		name, err = down(ctx, db)
		return err
	})
	return name, err
}

// DownAll takes back everything that the migrations made, events and all: the table unless it
// was adopted, goose's record, and the schema if it was made here and is empty.
func DownAll(ctx context.Context, config *pgx.ConnConfig) error {
	return session(ctx, config, func(ctx context.Context, db *sql.DB) error {
		if _, err := down(ctx, db); err != nil {
			return err
		}
		for {
			if _, err := down(ctx, db); errors.Is(err, ErrNotMigrated) {
				break
			} else if err != nil {
				return err
			}
		}
		if _, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS "+Table); err != nil {
			return fmt.Errorf("drop %s: %w", Table, err)
		}
		return dropSchema(ctx, db)
	})
}

// Step is one migration and when it was applied (zero: it is pending).
type Step struct {
	Version   int64
	Name      string
	AppliedAt time.Time
}

// Status lists the migrations of this build, oldest first. It changes nothing in the database.
func Status(ctx context.Context, config *pgx.ConnConfig) ([]Step, error) {
	db := stdlib.OpenDB(*config)
	defer db.Close()
	steps, err := sources()
	if err != nil {
		return nil, err
	}
	version, foreign, err := inspect(ctx, db)
	if err != nil || version == 0 {
		return steps, err
	}
	if foreign {
		return steps, fmt.Errorf("schema version %d: %w", version, ErrForeignTool)
	}
	rows, err := db.QueryContext(ctx, "SELECT version_id, tstamp FROM "+Table+" WHERE is_applied")
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", Table, err)
	}
	defer rows.Close()
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, fmt.Errorf("read %s: %w", Table, err)
		}
		if version >= 1 && version <= int64(len(steps)) {
			steps[version-1].AppliedAt = at
		}
	}
	return steps, rows.Err()
}

// SQL returns the whole schema as one script for people with another migration tool. It cannot
// run inside one transaction, since it builds indexes concurrently.
func SQL() (string, error) {
	steps, err := sources()
	if err != nil {
		return "", err
	}
	var script strings.Builder
	script.WriteString("-- Schema of the outbox, version " + fmt.Sprint(Latest) + ". Do not wrap it in a transaction: it creates indexes concurrently.\n\nCREATE SCHEMA IF NOT EXISTS events;\n")
	for _, step := range steps {
		text, err := fs.ReadFile(files, step.Name)
		if err != nil {
			return "", err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		script.WriteString("\n-- " + step.Name + "\n" + plain(up))
	}
	return script.String(), nil
}

var (
	annotation = regexp.MustCompile(`(?m)^-- \+goose .*\n`)
	setLocal   = regexp.MustCompile(`(?m)^SET LOCAL lock_timeout`)
)

// plain turns the Up part of one file into plain SQL. SET LOCAL has no effect outside a transaction.
func plain(up string) string {
	return setLocal.ReplaceAllString(annotation.ReplaceAllString(up, ""), "SET lock_timeout")
}

// sources lists the embedded files as steps not yet applied.
func sources() ([]Step, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	steps := make([]Step, len(names)) // Glob sorts, and the numbers have leading zeros
	for i, name := range names {
		steps[i] = Step{Version: int64(i + 1), Name: name}
	}
	return steps, nil
}

// session runs work while holding the migration lock, on a connection of its own. Goose's locker polls,
// so a waiter holds no snapshot that CREATE INDEX CONCURRENTLY would have to wait for. The lock
// also covers the schema, which goose's own use of it would not.
func session(ctx context.Context, config *pgx.ConnConfig, work func(context.Context, *sql.DB) error) (err error) {
	config = config.Copy()
	config.RuntimeParams["application_name"] = "outbox/migrate"
	db := stdlib.OpenDB(*config)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	// A locker keeps its spent budget (goose before 3.30.1), so each call makes its own.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(pgnames.MigrationLock), lock.WithLockTimeout(1, 300))
	if err != nil {
		return err
	}
	if err := locker.SessionLock(ctx, conn); err != nil {
		return fmt.Errorf("wait for another process that migrates: %w", err)
	}
	defer func() {
		// Closing the connection frees the lock as well; an error here changes nothing.
		_ = locker.SessionUnlock(context.WithoutCancel(ctx), conn)
	}()
	return work(ctx, db)
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(Table), goose.WithDisableGlobalRegistry(true))
}

// down takes back the newest migration that goose has on record.
func down(ctx context.Context, db *sql.DB) (string, error) {
	version, foreign, err := inspect(ctx, db)
	if err != nil {
		return "", err
	}
	if foreign {
		return "", fmt.Errorf("schema version %d: %w", version, ErrForeignTool)
	}
	if version == 0 {
		return "", ErrNotMigrated
	}
	if version > Latest {
		return "", fmt.Errorf("schema version %d is newer than this build (%d): take it back with the build that made it", version, Latest)
	}
	provider, err := newProvider(db)
	if err != nil {
		return "", err
	}
	result, err := provider.Down(ctx)
	if err != nil {
		return "", describe(err)
	}
	return result.Source.Path, nil
}

// inspect returns the version of the schema (0: none), and whether another tool made it.
func inspect(ctx context.Context, db *sql.DB) (version int, foreign bool, err error) {
	var function, table sql.NullString
	err = db.QueryRowContext(ctx, "SELECT to_regprocedure('events.outbox_schema_version()')::text, to_regclass($1)::text", Table).Scan(&function, &table)
	if err != nil {
		return 0, false, fmt.Errorf("inspect the schema: %w", err)
	}
	if !function.Valid {
		return 0, false, nil
	}
	if err := db.QueryRowContext(ctx, "SELECT events.outbox_schema_version()").Scan(&version); err != nil {
		return 0, false, fmt.Errorf("read the schema version: %w", err)
	}
	return version, !table.Valid, nil
}

// schemaMark is the comment by which [DownAll] knows that the schema was made here.
const schemaMark = "made by outbox migrate"

func createSchema(ctx context.Context, db *sql.DB) error {
	var there bool
	if err := db.QueryRowContext(ctx, "SELECT to_regnamespace('events') IS NOT NULL").Scan(&there); err != nil {
		return fmt.Errorf("look for the schema: %w", err)
	}
	if there { // CREATE SCHEMA would ask for a privilege that is not needed
		return nil
	}
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA events; COMMENT ON SCHEMA events IS '"+schemaMark+"'"); err != nil {
		return describe(fmt.Errorf("create schema events: %w", err))
	}
	return nil
}

func dropSchema(ctx context.Context, db *sql.DB) error {
	var empty bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (
		SELECT FROM pg_namespace n
		WHERE n.nspname = 'events' AND obj_description(n.oid, 'pg_namespace') = $1
		  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid))`,
		schemaMark).Scan(&empty)
	if err != nil {
		return fmt.Errorf("look at schema events: %w", err)
	}
	if !empty {
		return nil
	}
	if _, err := db.ExecContext(ctx, "DROP SCHEMA events"); err != nil {
		return fmt.Errorf("drop schema events: %w", err)
	}
	return nil
}

func isLockTimeout(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}

// describe adds what to do about the errors that an operator can meet.
func describe(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "55P03":
		return fmt.Errorf("events.outbox stayed locked by other sessions; nothing of this migration was applied, try again when long transactions have ended: %w", err)
	case "42501":
		return fmt.Errorf("the role lacks a privilege: migrate as the owner of schema events, or as a role that may create it: %w", err)
	case "55000":
		return fmt.Errorf("%s (%s)", pg.Message, pg.Hint)
	}
	return err
}
