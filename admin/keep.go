package admin

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// linesAtOnce is how many events are in memory at a time.
const linesAtOnce = 20

// KeepLines writes each event to w as a line of JSON: every column of its row, and what became of it at its subscribers. Where w has a
// method Sync, as an *os.File, that is called before the events are deleted.
func KeepLines(w io.Writer) Keep {
	return func(ctx context.Context, tx pgx.Tx, ids []int64) error {
		if err := writeLines(ctx, w, tx, ids); err != nil {
			return err
		}
		return sync(w)
	}
}

// KeepGzip is [KeepLines], compressed: each call appends a gzip member, which together make one gzip file.
func KeepGzip(w io.Writer) Keep {
	return func(ctx context.Context, tx pgx.Tx, ids []int64) error {
		zip := gzip.NewWriter(w)
		if err := writeLines(ctx, zip, tx, ids); err != nil {
			return err
		}
		if err := zip.Close(); err != nil {
			return err
		}
		return sync(w)
	}
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
		for _, line := range lines {
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
		}
	}
	return nil
}

func sync(w io.Writer) error {
	if s, ok := w.(interface{ Sync() error }); ok {
		return s.Sync()
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
			return err
		}
		if !there { // asked before, since IF NOT EXISTS needs the right to create also where it does not
			_, err := tx.Exec(ctx, "CREATE TABLE "+name+" (id BIGINT NOT NULL, event JSONB NOT NULL, "+
				"kept_at TIMESTAMPTZ NOT NULL DEFAULT now(), kept_by TEXT NOT NULL DEFAULT session_user)")
			if err != nil {
				return fmt.Errorf("make table %s: %w", name, err)
			}
		}
		_, err := tx.Exec(ctx, "INSERT INTO "+name+" (id, event) SELECT (l.line ->> 'id')::bigint, l.line FROM ("+eventsdb.EventLines+") l", ids)
		return err
	}
}
