package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

func newDeadCommand(a *app) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List dead letters",
		Long:  "List the dead letters that match all flags given.\n\n" + listTable,
		Example: `  outbox dead list
  outbox dead list --type InvoicePaid --error-contains timeout --newer-than 24h
  outbox dead list -o json | jq -r '.events[].id'`,
		Args: noArguments,
	}
	return group(&cobra.Command{
		Use:   "dead",
		Short: "List, show, retry and discard dead letters",
		Long: `List, show, retry and discard dead letters: events that failed ten times, or for good, and are not tried again. They
stay until somebody acts, and hold back nothing.`,
		Example: `  outbox dead list                                    what failed, and why
  outbox dead show 4711                               all about one event, with its payload
  outbox dead retry 4711                              try it again
  outbox dead retry --all --type InvoicePaid          try all of a type again
  outbox dead discard 4711 --to discarded.ndjson      give it up, and keep a copy`,
	}, listing(a, list, func() admin.State { return admin.Dead }), newDeadShowCommand(a), newDeadRetryCommand(a), newDeadDiscardCommand(a))
}

func newDeadShowCommand(a *app) *cobra.Command {
	var db databaseFlags
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show all about one event, dead or not, with its payload",
		Long: `Show all about one event, dead or not: its payload, how often it failed and why, which subscribers are through with
it, and what it means to its aggregate: which earlier event it waits for, and how many later ones wait for it or were
published before it.`,
		Example: `  outbox dead show 4711
  outbox dead show 4711 -o json | jq .payload.data`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageErrorf("give the id of one event: see `%s --help`", cmd.CommandPath())
			}
			return nil
		},
	}
	output := choiceFlag(cmd, "output", "o", "text", "how to print it", "text", "json")
	db.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := parseIDs(args)
		addr, addrErr := a.address(cmd, &db)
		if err := errors.Join(err, addrErr); err != nil {
			return err
		}
		var detail *admin.Detail
		err = a.onOutbox(cmd.Context(), addr, "dead-show", listTimeout, func(ctx context.Context, conn *pgx.Conn) (err error) {
			detail, err = admin.Show(ctx, conn, ids[0])
			return err
		})
		if errors.Is(err, admin.ErrNotFound) {
			return explain(err, "event %d does not exist", ids[0])
		}
		if err != nil {
			return err
		}
		if output.value == "json" {
			return outputError(writeJSON(a.stdout, detail))
		}
		return outputError(writeDetail(a.stdout, detail))
	}
	return cmd
}

func writeDetail(w io.Writer, d *admin.Detail) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s\t%s\n", name, value)
		}
	}
	const whole = 4096 // characters: more than any error has
	row("event", strconv.FormatInt(d.ID, 10))
	row("public id", d.PublicID.String())
	row("state", string(d.State))
	row("aggregate", printable(d.AggregateType, whole)+"/"+d.AggregateID.String())
	row("type", printable(d.EventType, whole))
	row("occurred", cmp.Or(stamp(&d.OccurredAt), "infinity"))
	row("published", stamp(d.PublishedAt))
	row("failures", strconv.Itoa(d.RetryCount))
	row("last error", printable(d.LastError, whole))
	row("tried again", stamp(d.NextRetryAt))
	for _, s := range d.Deliveries {
		fate := "delivered"
		if s.Dead {
			fate = "failed for good"
		}
		row("subscriber", fmt.Sprintf("%s: %s at %s", printable(s.Subscriber, whole), fate, stamp(&s.At)))
	}
	if d.BlockedBy != 0 && (d.State == admin.Pending || d.State == admin.Retrying) {
		row("waits for", fmt.Sprintf("event %d of its aggregate, which is retrying", d.BlockedBy))
	}
	row("later events", laterEvents(d))
	if err := table.Flush(); err != nil {
		return err
	}
	var payload bytes.Buffer
	if err := json.Indent(&payload, d.Payload, "", "  "); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	_, err := fmt.Fprintf(w, "payload\n%s\n", payload.Bytes())
	return err
}

// laterEvents says what an event means to the later ones of its aggregate.
func laterEvents(d *admin.Detail) string {
	if d.State == admin.Published {
		return ""
	}
	waiting := atMost(d.LaterWaiting) + " not published yet"
	if d.State == admin.Retrying {
		waiting = atMost(d.LaterWaiting) + " of its aggregate wait for it"
	}
	return fmt.Sprintf("%s, %s published", waiting, atMost(d.LaterPublished))
}

// atMost is a count that may have stopped.
func atMost(n int64) string {
	if n >= admin.CountAtMost {
		return strconv.Itoa(admin.CountAtMost) + "+"
	}
	return strconv.FormatInt(n, 10)
}

// selection is which dead letters a command acts on, and whether it has to ask.
type selection struct {
	db      databaseFlags
	filters filterFlags
	all     bool
	yes     bool
	dryRun  bool
}

func (s *selection) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.all, "all", false, "all dead letters that match the flags, instead of ids")
	s.filters.add(cmd)
	cmd.Flags().BoolVarP(&s.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "say how many there are, and change nothing")
	onlyAsFlags(cmd.Flags(), "all", "yes", "dry-run")
	s.db.add(cmd)
}

// chosen is a selection that has been checked.
type chosen struct {
	ids    []int64 // given, or found by the filter
	given  bool
	filter admin.Filter
}

func (s *selection) choose(cmd *cobra.Command, args []string) (chosen, error) {
	ids, err := parseIDs(args)
	filter, filterErr := s.filters.filter(cmd, admin.Dead)
	err = errors.Join(err, filterErr)
	switch {
	case len(args) > 0 && (s.all || s.filters.given(cmd)):
		err = errors.Join(err, usageErrorf("give ids, or --all with filters, not both"))
	case len(args) == 0 && !s.all && s.filters.given(cmd):
		err = errors.Join(err, usageErrorf("add --all to take all dead letters that match"))
	case len(args) == 0 && !s.all:
		err = errors.Join(err, usageErrorf("which ones? give ids, or --all: see `%s --help`", cmd.CommandPath()))
	}
	return chosen{slices.Compact(slices.Sorted(slices.Values(ids))), len(ids) > 0, filter}, err
}

// action is what a command does to dead letters.
type action struct {
	verb string                                                           // what it asks
	try  func(ctx context.Context, conn *pgx.Conn) error                  // looks whether it can; in a dry run only
	act  func(ctx context.Context, conn *pgx.Conn, c chosen) (int, error) // returns how many it was done to
}

// acting makes cmd do something to dead letters after it has asked: to those that it has counted, and to no others.
func acting(a *app, cmd *cobra.Command, s *selection, do action) *cobra.Command {
	s.add(cmd)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := s.choose(cmd, args)
		if !s.yes && !s.dryRun && !isTerminal(a.stdin) {
			err = errors.Join(err, usageErrorf("nothing was changed: nobody can be asked here, so confirm with --yes (or look with --dry-run)"))
		}
		addr, addrErr := a.address(cmd, &s.db)
		if err := errors.Join(err, addrErr); err != nil {
			return err
		}
		began, n := false, 0
		err = a.onOutbox(cmd.Context(), addr, "dead-"+strings.ToLower(do.verb), 0, func(ctx context.Context, conn *pgx.Conn) error {
			began = true
			if err := c.find(ctx, conn); err != nil {
				return err
			}
			if s.dryRun {
				if err := do.try(ctx, conn); err != nil {
					return err
				}
				return a.printf("%s would be affected; nothing was changed\n", deadLetters(len(c.ids)))
			}
			if len(c.ids) == 0 {
				return a.printf("no dead letters match: nothing to do\n")
			}
			if !s.yes {
				yes, err := a.ask(ctx, fmt.Sprintf("%s %s in database %q at %s?", do.verb, deadLetters(len(c.ids)), addr.database(), addr.server()))
				if err != nil {
					return err
				}
				if !yes {
					return a.printf("nothing was changed\n")
				}
			}
			n, err = do.act(ctx, conn, c)
			return err
		})
		if began && n == 0 {
			err = nothingChanged(cmd.Context(), err)
		}
		return err
	}
	return cmd
}

// find finds the dead letters that match the filter, or makes sure that the ids are dead letters.
func (c *chosen) find(ctx context.Context, conn *pgx.Conn) (err error) {
	if c.given {
		return admin.CheckDead(ctx, conn, c.ids)
	}
	c.ids, err = admin.IDs(ctx, conn, c.filter)
	return err
}

// nothingChanged adds to an error that nothing was changed.
func nothingChanged(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, admin.ErrUncertain) {
		return err
	}
	if wrong, ok := errors.AsType[*admin.NotDeadError](err); ok {
		err = wrong // says it all
	}
	return fmt.Errorf("%w: nothing was changed", err)
}

func deadLetters(n int) string {
	return fmt.Sprintf("%d %s", n, oneOrMany(n, "dead letter", "dead letters"))
}

// ask asks a person; only yes is yes.
func (a *app) ask(ctx context.Context, question string) (bool, error) {
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // it ends with the process, should nobody answer
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		return line == "y" || line == "yes", nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// logged writes what was done to dead letters, and who did it, as a line of log; also where more may have been done.
func (a *app) logged(conn *pgx.Conn, c chosen, did string, n int, err error) {
	uncertain := errors.Is(err, admin.ErrUncertain)
	if n == 0 && !uncertain {
		return
	}
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	log := newLogger(a.stderr, "info", "auto")
	line := log.Info().Int("events", n).Str("database", conn.Config().Database).Str("database_user", conn.Config().User).
		Str("by", name+"@"+host)
	if c.given {
		line = line.Ints64("event_ids", c.ids[:min(100, len(c.ids))])
	}
	if uncertain {
		line = line.Bool("perhaps_more", true)
	}
	line.Msg(did)
}

func newDeadRetryCommand(a *app) *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use:   "retry [ID …]",
		Short: "Try dead letters again",
		Long: `Try dead letters again, in the order of their ids, at once. Each has one attempt: its count of failures stays, and if
it fails it is dead again. Until then it holds back the later events of its aggregate. If later events of the
aggregate were published already, this one goes out after them: that is said at the end.

Given ids, all must be dead letters, or nothing is changed. With --all, those that match the flags when it asks are
taken, 500 at a time.`,
		Example: `  outbox dead retry 4711 4712
  outbox dead retry --all --type InvoicePaid --error-contains timeout --dry-run
  outbox dead retry --all --yes`,
	}
	return acting(a, cmd, &s, action{
		verb: "Retry",
		try:  func(context.Context, *pgx.Conn) error { return nil },
		act: func(ctx context.Context, conn *pgx.Conn, c chosen) (int, error) {
			redrive := admin.RedriveAny
			if c.given {
				redrive = admin.Redrive
			}
			done, err := redrive(ctx, conn, c.ids)
			a.logged(conn, c, "dead_letters_redriven", done.Events, err)
			switch {
			case done.Events == 0 && err != nil:
				return 0, err
			case done.Events == 0:
				return 0, a.printf("nothing was changed%s\n", notDead(len(c.ids)))
			}
			idle, workerErr := nobodyDelivers(ctx, conn)
			return done.Events, errors.Join(err, a.writeRedriven(done, others(c, done.Events, err), idle), workerErr)
		},
	})
}

// others is to how many of the chosen it was not done, though nothing failed.
func others(c chosen, done int, err error) int {
	if err != nil {
		return 0
	}
	return len(c.ids) - done
}

// nobodyDelivers tells whether no worker is connected.
func nobodyDelivers(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var s status
	err := s.readWorkers(ctx, eventsdb.New(conn))
	return err == nil && s.Owner == nil, err
}

// namedAtMost is how many events are named.
const namedAtMost = 10

// writeRedriven says what was done, and what will come of it. Some events were no dead letters any more.
func (a *app) writeRedriven(done admin.Redriven, others int, idle bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s tried again%s\n", deadLettersAre(done.Events), notDead(others))
	named(&b, done.Overtaken, func(id, n int64) string {
		more := ""
		if n == admin.Next {
			more = " or more"
		}
		return fmt.Sprintf("event %d goes out after %d%s later %s of its aggregate", id, n, more, oneOrMany(int(n), "event", "events"))
	})
	named(&b, done.Waiting, func(id, earlier int64) string {
		return fmt.Sprintf("event %d waits for event %d of its aggregate, which is in retry: see `outbox dead show %d`", id, earlier, earlier)
	})
	if idle {
		b.WriteString("no worker is connected: they wait for one\n")
	}
	return a.printf("%s", b.String())
}

// named writes a line for each of the first events, and one for the rest.
func named(b *strings.Builder, events map[int64]int64, line func(id, of int64) string) {
	ids := slices.Sorted(maps.Keys(events))
	for _, id := range ids[:min(namedAtMost, len(ids))] {
		fmt.Fprintln(b, line(id, events[id]))
	}
	if n := len(ids) - namedAtMost; n > 0 {
		fmt.Fprintf(b, "and so %s %d more\n", oneOrMany(n, "does", "do"), n)
	}
}

func deadLettersAre(n int) string { return deadLetters(n) + oneOrMany(n, " is", " are") }

// notDead says how many were meant and left alone, since somebody else was quicker.
func notDead(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d %s no dead %s any more", n, oneOrMany(n, "is", "are"), oneOrMany(n, "letter", "letters"))
}

func oneOrMany(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func newDeadDiscardCommand(a *app) *cobra.Command {
	var s selection
	var to keeper
	cmd := &cobra.Command{
		Use:   "discard [ID …] --to FILE",
		Short: "Delete dead letters, and keep a copy",
		Long: `Delete dead letters, after a copy has been written to where --to says:

  FILE.ndjson      appended to the file, a line of JSON each, with every column
  FILE.ndjson.gz   the same, compressed
  -                the same, on standard output
  table:S.T        inserted into table T of schema S, in the same transaction; it is made if it is not there

Given ids, all must be dead letters, or nothing is changed. With --all, those that match the flags when it asks are
taken, 500 at a time. After an error a file can have some that were not deleted. What a run that was killed has left of
its last batch is moved to FILE.torn by the next. A file that holds something else, or that another command is writing
to, is refused.`,
		Example: `  outbox dead discard 4711 --to discarded.ndjson
  outbox dead discard --all --type InvoicePaid --older-than 720h --to table:ops.discarded_events
  gunzip -c discarded.ndjson.gz | jq -r .event_type | sort | uniq -c`,
	}
	cmd.Flags().Var(&to, "to", "where to keep a copy: `FILE.ndjson`, FILE.ndjson.gz, - or table:SCHEMA.TABLE; required")
	onlyAsFlags(cmd.Flags(), "to")
	cmd = acting(a, cmd, &s, action{
		verb: "Discard",
		try:  func(ctx context.Context, conn *pgx.Conn) error { return to.try(ctx, a, conn) },
		act: func(ctx context.Context, conn *pgx.Conn, c chosen) (n int, err error) {
			keep, closeKeep, err := to.open(a)
			if err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, closeKeep()) }()
			discard := admin.DiscardAny
			if c.given {
				discard = admin.Discard
			}
			n, err = discard(ctx, conn, c.ids, keep)
			a.logged(conn, c, "dead_letters_discarded", n, err)
			if to.value != "-" && (n > 0 || err == nil) {
				err = errors.Join(err, a.printf("%s discarded, and kept in %s%s\n", deadLettersAre(n), to.value, notDead(others(c, n, err))))
			}
			return n, err
		},
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if to.value == "" && !s.dryRun {
			return usageErrorf("where to keep a copy? give --to FILE.ndjson, or --to table:SCHEMA.TABLE")
		}
		return run(cmd, args)
	}
	return cmd
}
