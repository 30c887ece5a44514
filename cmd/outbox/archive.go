package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/admin"
)

func newArchiveCommand(a *app) *cobra.Command {
	var db databaseFlags
	var to keeper
	var dryRun bool
	olderThan := duration(admin.DefaultRetention)
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Delete events that were published long ago",
		Long: `Delete events that were published longer ago than --older-than, for cron. What is not published is never deleted, nor
are dead letters.

It takes 1,000 events at a time, a transaction each, and pauses in between, so that it disturbs nobody. It can be
stopped at any time; the next one goes on. While another archive is at work it does nothing and ends with exit code 0.

With --to, events are written there before they are deleted: as ` + "`outbox dead discard`" + ` does.`,
		Example: `  outbox archive --dry-run
  outbox archive --older-than 2160h
  outbox archive --to /var/backups/outbox.ndjson.gz
  0 4 * * *  outbox archive                         in a crontab, with OUTBOX_DATABASE_URL set`,
		Args: noArguments,
	}
	cmd.Flags().Var(&olderThan, "older-than", "delete what was published longer ago than this")
	cmd.Flags().Var(&to, "to", "where to keep a copy: `FILE.ndjson`, FILE.ndjson.gz, - or table:SCHEMA.TABLE")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say how many there are, and delete nothing")
	onlyAsFlags(cmd.Flags(), "older-than", "to", "dry-run")
	db.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		addr, err := a.address(cmd, &db)
		if err != nil {
			return err
		}
		return a.onOutbox(cmd.Context(), addr, "archive", 0, func(ctx context.Context, conn *pgx.Conn) (err error) {
			o := admin.ArchiveOptions{Retention: time.Duration(olderThan), DryRun: dryRun}
			if to.value != "" && !dryRun {
				keep, closeKeep, openErr := to.open(a.stdout)
				if openErr != nil {
					return openErr
				}
				defer func() { err = errors.Join(err, closeKeep()) }()
				o.Keep = keep
			}
			n, archiveErr := admin.Archive(ctx, conn, o)
			return a.writeArchived(n, o, to.value, archiveErr)
		})
	}
	return cmd
}

// writeArchived says what an archive did, also one that failed.
func (a *app) writeArchived(n int64, o admin.ArchiveOptions, to string, err error) error {
	switch {
	case errors.Is(err, admin.ErrArchiving) && n == 0:
		return a.printf("another archive is at work: nothing to do\n")
	case o.DryRun && err == nil:
		return a.printf("%s published longer ago than %s; nothing was deleted\n", eventsWere(n), o.Retention)
	case to == "-" || n == 0 && err != nil: // what was kept is on standard output
		return err
	}
	return errors.Join(err, a.printf("%s deleted\n", eventsWere(n)))
}

func eventsWere(n int64) string { return events(int(n)) + oneOrMany(int(n), " was", " were") }
