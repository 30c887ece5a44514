package admin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// linesAtOnce is how many events are in memory at a time.
const linesAtOnce = 20

// KeepLines writes each event to w as a line of JSON: every column of its row, and what became of it at its subscribers. Every time is in
// UTC. For a file use [OpenFile], which also brings it to the disk and cuts off what a failure left behind.
func KeepLines(w io.Writer) Keep {
	return func(ctx context.Context, tx pgx.Tx, ids []int64) error { return writeLines(ctx, w, tx, ids) }
}

func writeLines(ctx context.Context, w io.Writer, tx pgx.Tx, ids []int64) error {
	q := queries(tx)
	for len(ids) > 0 {
		some := ids[:min(linesAtOnce, len(ids))]
		ids = ids[len(some):]
		lines, err := q.EventLines(ctx, some)
		if err != nil {
			return err
		}
		if len(lines) != len(some) {
			return fmt.Errorf("%d of %d events can be read", len(lines), len(some))
		}
		for _, line := range lines {
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
		}
	}
	return nil
}

// KeepTable copies events to a table of the same database, in the transaction that deletes them. It is made where it does not exist,
// with the columns id, event (JSON, as in [KeepLines]), kept_at and kept_by. jsonb_populate_record(NULL::events.outbox, event) is the row again.
func KeepTable(table pgx.Identifier) Keep {
	name := table.Sanitize()
	return func(ctx context.Context, tx pgx.Tx, ids []int64) error {
		var there bool
		if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", name).Scan(&there); err != nil {
			return tableError(name, err)
		}
		if !there { // asked before, since IF NOT EXISTS needs the right to create also where it does not
			_, err := tx.Exec(ctx, "CREATE TABLE "+name+" (id BIGINT NOT NULL, event JSONB NOT NULL, "+
				"kept_at TIMESTAMPTZ NOT NULL DEFAULT now(), kept_by TEXT NOT NULL DEFAULT session_user)")
			if err != nil {
				return tableError(name, err)
			}
		}
		inserted, err := tx.Exec(ctx, "INSERT INTO "+name+" (id, event) SELECT (l.line ->> 'id')::bigint, l.line FROM ("+eventsdb.EventLines+") l", ids)
		if err != nil {
			return tableError(name, err)
		}
		if n := inserted.RowsAffected(); n != int64(len(ids)) { // a trigger or a rule has dropped some
			return fmt.Errorf("table %s took %d of %d events: look at its triggers and rules", name, n, len(ids))
		}
		return nil
	}
}

// tableError says what is wrong with a table that is to keep events, where the database does not.
func tableError(name string, err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pg.Code {
	case "3F000": // invalid_schema_name
		return fmt.Errorf("table %s cannot be made: %w", name, err)
	case "23505", "42P07": // unique_violation in the catalog, duplicate_table
		return fmt.Errorf("table %s is being made by somebody else, try again (%w)", name, err)
	case "42703", "42804", "23502", "42809": // undefined_column, datatype_mismatch, not_null_violation, wrong_object_type
		return fmt.Errorf("%s is not a table of kept events, which has the columns id BIGINT and event JSONB, and can fill the others (%w)", name, err)
	}
	return fmt.Errorf("table %s: %w", name, err)
}
