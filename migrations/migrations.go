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
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed *.sql
var files embed.FS

// Latest is the schema version that this build needs: the number of the newest migration.
const Latest = 10

// Table is where goose records which migrations it applied. It lives in the outbox's own schema,
// so that a service that uses goose for its own tables shares nothing with it.
const Table = "events.outbox_migrations"

// lockTries is how often a statement that found the table locked for 3 s (lock_timeout in the
// files) is tried again, so that a busy table does not fail a deployment.
const lockTries = 5

// Up applies all migrations that are missing, and calls applied, if it is given, with the name of each that it has applied
// itself. It is safe when several processes call it at once:
// they wait for one another for up to five minutes. A table events.outbox that was made by the
// specification is adopted; one that differs is refused with the differences, and nothing is changed.
//
// config must lead to the server itself or a pooler in session mode: the wait is an advisory lock of the session.
func Up(ctx context.Context, config *pgx.ConnConfig, applied func(name string)) error {
	return upTrying(ctx, config, lockTries, applied)
}

func upTrying(ctx context.Context, config *pgx.ConnConfig, tries int, applied func(name string)) error {
	return session(ctx, config, func(ctx context.Context, db *sql.DB) error {
		version, foreign, err := inspect(ctx, db)
		if err != nil {
			return err
		}
		if err := refuseNewer(version); err != nil {
			return err
		}
		if foreign && version == Latest {
			return nil
		}
		if foreign {
			return fmt.Errorf("schema version %d, this build needs %d: %w", version, Latest, ErrForeignTool)
		}
		if err := createSchema(ctx, db); err != nil {
			return err
		}
		if err := apply(ctx, db, tries, applied); err != nil {
			_ = forget(ctx, db) // what it cannot remove is harmless, and the first error says why
			return describe(err)
		}
		return nil
	})
}

// apply runs the migrations, each again while the table is locked.
func apply(ctx context.Context, db *sql.DB, tries int, applied func(name string)) error {
	for try := 1; ; {
		// A provider whose first call failed stays failed: a new one for each try.
		provider, err := newProvider(db)
		if err != nil {
			return err
		}
		result, err := provider.UpByOne(ctx)
		switch {
		case errors.Is(err, goose.ErrNoNextVersion):
			return nil
		case err == nil:
			try = 1
			if applied != nil {
				applied(filepath.Base(result.Source.Path))
			}
		case try == tries || !isLocked(err):
			return err
		default:
			try++
		}
	}
}

// Down takes back the newest applied migration and returns its name. With the oldest one go goose's record, and the schema
// if it was made here and is empty.
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
		_, err := down(ctx, db)
		for err == nil {
			if _, err = down(ctx, db); errors.Is(err, ErrNotMigrated) {
				return nil
			}
		}
		return err
	})
}

// down takes back the newest migration that goose has on record.
func down(ctx context.Context, db *sql.DB) (string, error) {
	version, foreign, err := inspect(ctx, db)
	if err != nil {
		return "", err
	}
	if err := refuseNewer(version); err != nil {
		return "", err
	}
	if foreign {
		return "", fmt.Errorf("schema version %d: %w", version, ErrForeignTool)
	}
	if version == 0 {
		if err := forget(ctx, db); err != nil { // what an interrupted Up left behind
			return "", err
		}
		return "", ErrNotMigrated
	}
	provider, err := newProvider(db)
	if err != nil {
		return "", err
	}
	result, err := provider.Down(ctx)
	if err != nil {
		return "", describe(err)
	}
	return result.Source.Path, forget(ctx, db)
}

// Step is one migration and when it was applied (zero: it is pending).
type Step struct {
	Version   int64
	Name      string
	AppliedAt time.Time
}

// Status lists the migrations of this build, oldest first. It changes nothing in the database. For a schema that is newer or
// that another tool made it returns [ErrNewer] or [ErrForeignTool] besides.
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
	newer := refuseNewer(version)
	if foreign {
		if newer != nil {
			return steps, newer
		}
		return steps, fmt.Errorf("schema version %d: %w", version, ErrForeignTool)
	}
	// Goose's column has no time zone: it was written in the time zone of a session like this one.
	rows, err := db.QueryContext(ctx, "SELECT version_id, tstamp::timestamptz FROM "+Table+" WHERE is_applied")
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
	return steps, errors.Join(rows.Err(), newer)
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

func newProvider(db *sql.DB) (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(Table), goose.WithDisableGlobalRegistry(true))
}
