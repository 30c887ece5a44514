package migrations

import (
	"context"
	"database/sql"
	"fmt"
)

// inspect returns the version of the schema (0: none), and whether another tool made it. The version is the schema's own, or
// that of goose's record if it is higher: goose takes back no migration that it has no file for.
func inspect(ctx context.Context, db *sql.DB) (version int, foreign bool, err error) {
	var function, table sql.NullString
	err = db.QueryRowContext(ctx, "SELECT to_regprocedure('events.outbox_schema_version()')::text, to_regclass($1)::text", Table).Scan(&function, &table)
	if err != nil {
		return 0, false, describe(fmt.Errorf("inspect the schema: %w", err))
	}
	if !function.Valid {
		return 0, false, nil
	}
	if err := db.QueryRowContext(ctx, "SELECT events.outbox_schema_version()").Scan(&version); err != nil {
		return 0, false, describe(fmt.Errorf("read the schema version: %w", err))
	}
	if !table.Valid {
		return version, true, nil
	}
	var recorded int
	if err := db.QueryRowContext(ctx, "SELECT COALESCE(max(version_id), 0) FROM "+Table+" WHERE is_applied").Scan(&recorded); err != nil {
		return 0, false, describe(fmt.Errorf("read %s: %w", Table, err))
	}
	return max(version, recorded), false, nil
}

// schemaMark is the comment by which [forget] knows that the schema was made here.
const schemaMark = "made by outbox migrate"

func createSchema(ctx context.Context, db *sql.DB) error {
	var there bool
	if err := db.QueryRowContext(ctx, "SELECT to_regnamespace('events') IS NOT NULL").Scan(&there); err != nil {
		return fmt.Errorf("look for schema events: %w", err)
	}
	if there { // CREATE SCHEMA would ask for a privilege that is not needed
		return nil
	}
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA events; COMMENT ON SCHEMA events IS '"+schemaMark+"'"); err != nil {
		return describe(fmt.Errorf("create schema events: %w", err))
	}
	return nil
}

// forget removes what is there before the first migration and after the last is taken back: goose's record, and the schema
// if it was made here and is empty. While a migration is applied it does nothing.
func forget(ctx context.Context, db *sql.DB) error {
	version, _, err := inspect(ctx, db)
	if err != nil || version > 0 {
		return err
	}
	if _, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS "+Table); err != nil {
		return describe(fmt.Errorf("drop %s: %w", Table, err))
	}
	var ours bool
	err = db.QueryRowContext(ctx, `SELECT EXISTS (
		SELECT FROM pg_catalog.pg_namespace n
		WHERE n.nspname = 'events' AND obj_description(n.oid, 'pg_namespace') = $1
		  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid))`,
		schemaMark).Scan(&ours)
	if err != nil {
		return fmt.Errorf("look at schema events: %w", err)
	}
	if !ours {
		return nil
	}
	if _, err := db.ExecContext(ctx, "DROP SCHEMA events"); err != nil {
		return describe(fmt.Errorf("drop schema events: %w", err))
	}
	return nil
}
