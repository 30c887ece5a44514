// Package audit keeps a copy of every published event for ever, in the table audit.events of the same database. The copy is made in the
// transaction that marks the event as published: both are there or neither, and exactly once.
//
//	err := audit.Create(ctx, conn)                                        // once, as its owner: or `outbox audit create`
//	outbox.Config{Audit: true}                                            // or: outbox run --audit
//	n, err := audit.Backfill(ctx, pool, audit.BackfillOptions{})          // what was published before that
//	admin.Archive(ctx, pool, admin.ArchiveOptions{Only: audit.Recorded})  // delete only what has a copy
//
// For a table of another form, write a function like [Record] and give it to outbox.Config.OnPublished.
package audit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/db"
	"github.com/seed-9a365b49/outbox/db/auditdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

// DB is a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type DB = admin.DB

// queries plans every statement anew: see [db.FreshPlans].
func queries(q auditdb.DBTX) *auditdb.Queries { return auditdb.New(db.FreshPlans(q)) }

// Record copies those of the events that are published. What has a copy keeps it. It is for outbox.Config.OnPublished: Config.Audit does that.
func Record(ctx context.Context, tx pgx.Tx, ids []int64) error {
	if _, err := queries(tx).Record(ctx, ids); err != nil {
		return fmt.Errorf("copy %d events to audit.events: %w", len(ids), err)
	}
	return nil
}

// Recorded returns those of the events that have a copy. It is for admin.ArchiveOptions.Only.
func Recorded(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
	recorded, err := queries(tx).Recorded(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look for %d events in audit.events: %w", len(ids), err)
	}
	return recorded, nil
}

//go:embed schema.sql
var table string

const schema = "CREATE SCHEMA IF NOT EXISTS audit;\n"

// SQL returns the script that makes audit.events, for people with another migration tool.
func SQL() string { return schema + "\n" + table }

// Errors of a database that cannot be audited to. Each comes wrapped in a line that says what to do.
var (
	// ErrNoTable: audit.events is not there.
	ErrNoTable = errors.New("there is no table audit.events")
	// ErrForeignTable: it is there, and was not made here.
	ErrForeignTable = errors.New("audit.events was not made by outbox")
	// ErrPrivileges: the role lacks privileges.
	ErrPrivileges = errors.New("the role lacks privileges")
)

// Create makes audit.events, and schema audit if that is missing. If it is there already it does nothing, and says so. A table audit.events that
// something else made is left alone: [ErrForeignTable].
func Create(ctx context.Context, db DB) (made bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		q := auditdb.New(tx)
		if err := q.LockCreation(ctx, pgnames.AuditLock); err != nil {
			return err
		}
		facts, err := q.Facts(ctx)
		switch {
		case err != nil:
			return err
		case facts.There && !facts.Ours:
			return errForeign
		case facts.There:
			return nil
		}
		made = true
		if !facts.SchemaThere { // asked before, since IF NOT EXISTS needs the right to create also where it does not
			if _, err := tx.Exec(ctx, schema); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, table)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("create audit.events: %w", err)
	}
	return made, nil
}

var errForeign = fmt.Errorf("%w: for an audit table of your own, give outbox.Config.OnPublished a function that writes to it", ErrForeignTable)

// Check returns an error that says what to do where the current role cannot copy events to audit.events, nor, if it is to, look there.
func Check(ctx context.Context, db auditdb.DBTX, write, read bool) error {
	facts, err := auditdb.New(db).Facts(ctx)
	grant := func(what string) error {
		return fmt.Errorf("%w: as the owner of schema audit, run GRANT %s (docs/roles.md)", ErrPrivileges, what)
	}
	switch {
	case err != nil:
		return fmt.Errorf("look at audit.events: %w", err)
	case !facts.There:
		return fmt.Errorf("%w: run `outbox audit create`", ErrNoTable)
	case !facts.Ours:
		return errForeign
	case !facts.MayUse:
		return grant("USAGE ON SCHEMA audit TO " + facts.Role)
	case write && !facts.MayInsert:
		return grant("INSERT ON audit.events TO " + facts.Role)
	case read && !facts.MaySelect:
		return grant("SELECT ON audit.events TO " + facts.Role)
	}
	return nil
}
