package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/audit"
)

func newArchiveCommand(a *app) *cobra.Command {
	var to keeper
	var dryRun, requireAudit bool
	olderThan := duration(admin.DefaultRetention)
	cmd := onOutboxAlone(a, "archive", &cobra.Command{
		Use:   "archive",
		Short: "Delete events that were published long ago",
		Long: `Delete events that were published longer ago than --older-than, for cron. What is not published is never deleted, nor
are dead letters.

It takes 1,000 events at a time, a transaction each, and pauses in between, so that it disturbs nobody. It can be
stopped at any time; the next one goes on. While another archive is at work it does nothing and ends with exit code 0.

Events are published in about the order of their ids. So it begins with the lowest, and stops where it has met 10,000 or
so in a row that are too young: what is old behind them is found once they are gone. Then it says where it stopped.

With --require-audit, what has no copy in audit.events stays, and the command says how many and ends with exit code 1.

With --to, events are written there before they are deleted: as ` + "`outbox dead discard`" + ` does.`,
		Example: `  outbox archive --dry-run
  outbox archive --older-than 2160h
  outbox archive --to /var/backups/outbox.ndjson.gz
  0 4 * * *  outbox archive                         in a crontab, with OUTBOX_DATABASE_URL set`,
	}, func(ctx context.Context, conn *pgx.Conn) (err error) {
		o := admin.ArchiveOptions{Retention: time.Duration(olderThan), DryRun: dryRun}
		if requireAudit {
			if err := audit.Check(ctx, conn, false, true); err != nil {
				return err
			}
			o.Only = audit.Recorded
		}
		if dryRun {
			if err := to.try(ctx, a, conn); err != nil {
				return nothingChanged(ctx, err)
			}
		} else if to.value != "" {
			var closeKeep func() error
			o.Keep, closeKeep = to.openLater(a)
			defer func() { err = errors.Join(err, closeKeep()) }()
		}
		archived, archiveErr := admin.Archive(ctx, conn, o)
		if archived.Events == 0 && !errors.Is(archiveErr, admin.ErrArchiving) {
			archiveErr = nothingChanged(ctx, archiveErr)
		}
		return errors.Join(a.writeArchived(archived, o, to.value, archiveErr), a.writeWithheld(archived))
	})
	cmd.Flags().Var(&olderThan, "older-than", "delete what was published longer ago than this")
	cmd.Flags().Var(&to, "to", "where to keep a copy: `FILE.ndjson`, FILE.ndjson.gz, - or table:SCHEMA.TABLE")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say how many there are, and delete nothing")
	cmd.Flags().BoolVar(&requireAudit, "require-audit", false, "delete only what has a copy in audit.events: see outbox audit")
	onlyAsFlags(cmd.Flags(), "older-than", "to", "dry-run", "require-audit")
	return cmd
}

// writeArchived says what an archive did, also one that failed.
func (a *app) writeArchived(done admin.Archived, o admin.ArchiveOptions, to string, err error) error {
	switch {
	case errors.Is(err, admin.ErrArchiving) && done.Events == 0:
		return a.printf("another archive is at work: nothing to do\n")
	case errors.Is(err, admin.ErrArchiving) && to != "-":
		return a.printf("%s deleted; another archive goes on\n", eventsWere(done.Events))
	case errors.Is(err, admin.ErrArchiving):
		return nil
	case o.DryRun && err != nil && done.Events > 0:
		return errors.Join(err, a.printf("%s so far published longer ago than %s; nothing was deleted\n", eventsWere(done.Events), o.Retention))
	case o.DryRun && err == nil:
		return a.printf("%s published longer ago than %s; nothing was deleted%s\n", eventsWere(done.Events), o.Retention, stoppedAt(done))
	case to == "-" || done.Events == 0 && (err != nil || done.Withheld > 0): // what was kept is on standard output
		return err
	}
	return errors.Join(err, a.printf("%s deleted%s\n", eventsWere(done.Events), stoppedAt(done)))
}

// stoppedAt says that an archive has not looked at all events, and why.
func stoppedAt(done admin.Archived) string {
	if done.StoppedAt == nil {
		return ""
	}
	return fmt.Sprintf("; stopped at event %d, since those before it are too young", *done.StoppedAt)
}

// writeWithheld says how many events had no copy. It is an error, so that a cron job tells somebody.
func (a *app) writeWithheld(done admin.Archived) error {
	if done.Withheld == 0 {
		return nil
	}
	return fmt.Errorf("%s not in audit.events and %s: run `outbox audit backfill`", eventsWere(done.Withheld), oneOrMany(int(done.Withheld), "stays", "stay"))
}

func eventsWere(n int64) string { return events(int(n)) + oneOrMany(int(n), " was", " were") }
