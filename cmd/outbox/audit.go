package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/audit"
)

func newAuditCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "audit",
		Short: "Keep a copy of every published event for ever",
		Long: `Keep a copy of every published event for ever, in table audit.events of the same database. A worker that runs with --audit
makes the copy in the transaction that marks the event as published: both are there or neither.`,
		Example: `  outbox audit create                  make the table, once
  outbox run --audit --sink …          copy from now on
  outbox audit backfill                copy what was published before
  outbox archive --require-audit       delete old events, and only those that have a copy`,
	}, newAuditCreateCommand(a), newAuditBackfillCommand(a), newAuditSQLCommand(a))
}

func newAuditCreateCommand(a *app) *cobra.Command {
	return onOutboxAlone(a, "audit", &cobra.Command{
		Use:   "create",
		Short: "Make the table audit.events",
		Long: `Make the table audit.events, and schema audit if it is missing. If the table is there, it does nothing.

A worker's role needs INSERT on it, an operator's SELECT: see docs/roles.md.`,
		Example: "  outbox audit create",
	}, func(ctx context.Context, conn *pgx.Conn) error {
		made, err := audit.Create(ctx, conn)
		switch {
		case err != nil:
			return err
		case made:
			return a.printf("made audit.events\n")
		}
		return a.printf("audit.events is there already\n")
	})
}

func newAuditBackfillCommand(a *app) *cobra.Command {
	var dryRun bool
	cmd := onOutboxAlone(a, "audit", &cobra.Command{
		Use:   "backfill",
		Short: "Copy what was published before audit was switched on",
		Long: `Copy the events that are published and have no copy in audit.events. Start workers with --audit first, so that nothing is
published behind its back.

It takes 1,000 events at a time, a transaction each, and pauses in between, so that it disturbs nobody. It can be
stopped at any time, and run again.`,
		Example: `  outbox audit backfill --dry-run
  outbox audit backfill`,
	}, func(ctx context.Context, conn *pgx.Conn) error {
		if err := audit.Check(ctx, conn, !dryRun, true); err != nil {
			return err
		}
		n, err := audit.Backfill(ctx, conn, audit.BackfillOptions{DryRun: dryRun})
		switch {
		case err != nil && n == 0:
			return err
		case dryRun:
			return errors.Join(err, a.printf("%s published without a copy; nothing was copied\n", eventsWere(n)))
		}
		return errors.Join(err, a.printf("%s copied\n", eventsWere(n)))
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say how many there are, and copy nothing")
	onlyAsFlags(cmd.Flags(), "dry-run")
	return cmd
}

func newAuditSQLCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "sql",
		Short:   "Print the SQL of audit.events, for another migration tool",
		Example: "  outbox audit sql > db/migrations/0043_audit.sql",
		Args:    noArguments,
		RunE:    func(*cobra.Command, []string) error { return a.printf("%s", audit.SQL()) },
	}
}
