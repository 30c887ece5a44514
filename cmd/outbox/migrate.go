package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/migrations"
)

func newMigrateCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "migrate",
		Short: "Make, change and show the schema",
		Long: `Make, change and show the schema: events.outbox, what keeps its rules, and the trigger that wakes the worker.

Migrations need a direct address, not one of a transaction pooler.`,
		Example: `  outbox migrate up            make the schema, or bring it up to date
  outbox migrate status        which migrations are applied
  outbox migrate notify        when publishers announce their events, and how to change it
  outbox migrate sql           the SQL, for another migration tool`,
	}, newMigrateUpCommand(a), newMigrateDownCommand(a), newMigrateStatusCommand(a), newMigrateNotifyCommand(a), newMigrateSQLCommand(a))
}

// onDatabase is a command that works on the database's configuration.
func onDatabase(a *app, cmd *cobra.Command, work func(ctx context.Context, config *pgx.ConnConfig) error) *cobra.Command {
	var db databaseFlags
	db.add(cmd)
	cmd.Args = noArguments
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		addr, err := a.address(cmd, &db)
		if err != nil {
			return err
		}
		return addr.explainMigration(work(cmd.Context(), addr.connConfig("migrate")))
	}
	return cmd
}

func newMigrateUpCommand(a *app) *cobra.Command {
	return onDatabase(a, &cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that are missing",
		Long: `Apply the migrations that are missing. Several processes can do so at once: they wait for one another.

A table events.outbox that was made by the specification is adopted as it is; one that differs is refused with the list
of differences, and nothing is changed.`,
		Example: `  outbox migrate up
  outbox migrate up --database-url postgres://owner:secret@db.example.com/billing`,
	}, func(ctx context.Context, config *pgx.ConnConfig) error {
		_, err := migrations.Status(ctx, config)
		foreign := errors.Is(err, migrations.ErrForeignTool)
		if err != nil && !foreign {
			return err
		}
		var applied int
		var printing error
		err = migrations.Up(ctx, config, func(name string) {
			applied++
			printing = errors.Join(printing, a.printf("applied %s\n", name))
		})
		switch {
		case err != nil:
			return err
		case foreign:
			return a.printf("up to date: version %d, applied by another migration tool\n", migrations.Latest)
		case applied == 0:
			return a.printf("up to date: version %d\n", migrations.Latest)
		}
		return printing
	})
}

func newMigrateDownCommand(a *app) *cobra.Command {
	var all, yes bool
	cmd := onDatabase(a, &cobra.Command{
		Use:   "down",
		Short: "Take back the newest migration, or all of them",
		Long: `Take back the newest migration; with --all, everything that the migrations made. An adopted table stays.

Where that drops events.outbox with every event in it, --yes has to confirm it. --all and --yes are not taken from
the environment.`,
		Example: `  outbox migrate down                take back the newest
  outbox migrate down --all --yes    drop the outbox and all events`,
	}, func(ctx context.Context, config *pgx.ConnConfig) error {
		if all {
			if !yes {
				return usageErrorf("migrate down --all drops events.outbox and every event in it is lost: add --yes to confirm")
			}
			if err := migrations.DownAll(ctx, config); err != nil {
				return err
			}
			return a.printf("took back everything\n")
		}
		if !yes {
			if err := refuseLoss(ctx, config); err != nil {
				return err
			}
		}
		name, err := migrations.Down(ctx, config)
		if err != nil {
			return err
		}
		return a.printf("took back %s\n", name)
	})
	cmd.Flags().BoolVar(&all, "all", false, "take back all migrations")
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm that all events are lost")
	onlyAsFlags(cmd.Flags(), "all", "yes")
	return cmd
}

// refuseLoss returns an error where the oldest migration, which made the table, is the only one left to take back.
func refuseLoss(ctx context.Context, config *pgx.ConnConfig) error {
	steps, err := migrations.Status(ctx, config)
	if err != nil {
		return err
	}
	applied := 0
	for _, step := range steps {
		if !step.AppliedAt.IsZero() {
			applied++
		}
	}
	if applied == 1 {
		return usageErrorf("migrate down would take back %s, which drops events.outbox, and every event in it is lost: add --yes to confirm", steps[0].Name)
	}
	return nil
}

func newMigrateStatusCommand(a *app) *cobra.Command {
	return onDatabase(a, &cobra.Command{
		Use:     "status",
		Short:   "Show which migrations are applied",
		Example: "  outbox migrate status",
	}, func(ctx context.Context, config *pgx.ConnConfig) error {
		steps, err := migrations.Status(ctx, config)
		if errors.Is(err, migrations.ErrForeignTool) {
			return a.printf("%s\n", oneLine(ctx, err))
		}
		if err != nil && !errors.Is(err, migrations.ErrNewer) {
			return explainPrivilege(err, config.User)
		}
		return errors.Join(outputError(writeSteps(a.stdout, steps)), err)
	})
}

func writeSteps(w io.Writer, steps []migrations.Step) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VERSION\tNAME\tAPPLIED")
	for _, step := range steps {
		applied := "pending"
		if !step.AppliedAt.IsZero() {
			applied = step.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\n", step.Version, step.Name, applied)
	}
	return table.Flush()
}

func newMigrateNotifyCommand(a *app) *cobra.Command {
	var mode migrations.NotifyMode
	cmd := onDatabase(a, &cobra.Command{
		Use:   "notify [gated|always|off]",
		Short: "Show or change when publishers announce their events",
		Long: `Show or change when publishers announce their events with NOTIFY. A change takes effect at once: it locks nothing,
and neither publishers nor workers need a restart.

  gated    while the worker sleeps: it is woken at once, and busy publishers do not wait for one another (the default)
  always   in every transaction: for other programs that LISTEN on events_outbox_wake; commits wait for one another
  off      never: the worker polls. For two-phase commit, since PREPARE TRANSACTION refuses NOTIFY`,
		Example: `  outbox migrate notify
  outbox migrate notify off`,
	}, func(ctx context.Context, config *pgx.ConnConfig) error {
		if mode != "" {
			if err := migrations.SetNotify(ctx, config, mode); err != nil {
				return err
			}
		}
		now, err := migrations.Notify(ctx, config)
		if err != nil {
			return explainPrivilege(err, config.User) // to read it one need not be the owner
		}
		return a.printf("%s\n", now)
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		mode = migrations.NotifyMode(args[0])
		if len(args) > 1 || !slices.Contains(migrations.NotifyModes, mode) {
			return usageErrorf("migrate notify takes one of gated, always and off: see `%s --help`", cmd.CommandPath())
		}
		return nil
	}
	return cmd
}

func newMigrateSQLCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "sql",
		Short: "Print the whole schema as SQL, for another migration tool",
		Long: `Print the whole schema as SQL, for people with another migration tool. It asks nothing of a database.

The script builds indexes concurrently, so it cannot run inside one transaction. outbox recognises a schema that was made
this way, and leaves it to the other tool.`,
		Example: `  outbox migrate sql > db/migrations/0042_outbox.sql
  outbox migrate sql | psql -v ON_ERROR_STOP=1 billing`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			script, err := migrations.SQL()
			if err != nil {
				return err
			}
			return a.printf("%s", script)
		},
	}
}
