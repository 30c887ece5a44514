package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

const (
	// listTimeout bounds what only looks.
	listTimeout = 30 * time.Second
	// errorWidth is how much of an error a table shows.
	errorWidth = 60
)

// filterFlags are the flags that say which events are meant.
type filterFlags struct {
	aggregate, eventType, errorContains string
	olderThan, newerThan                duration
}

func (f *filterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.aggregate, "aggregate", "", "of this aggregate: `TYPE/ID`, or TYPE for all of the type")
	flags.StringVar(&f.eventType, "type", "", "of this event type")
	flags.StringVar(&f.errorContains, "error-contains", "", "whose last error contains this `TEXT`, in either case")
	flags.Var(&f.olderThan, "older-than", "that occurred longer ago than this")
	flags.Var(&f.newerThan, "newer-than", "that occurred since this long ago")
	onlyAsFlags(flags, filterFlagNames...)
}

var filterFlagNames = []string{"aggregate", "type", "error-contains", "older-than", "newer-than"}

// given tells whether the command line has a filter.
func (f *filterFlags) given(cmd *cobra.Command) bool {
	for _, name := range filterFlagNames {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// filter is an error for an empty filter: it would mean everything, where somebody wanted less.
func (f *filterFlags) filter(cmd *cobra.Command, state admin.State) (admin.Filter, error) {
	filter := admin.Filter{
		State: state, EventType: f.eventType, ErrorContains: f.errorContains,
		OlderThan: time.Duration(f.olderThan), NewerThan: time.Duration(f.newerThan),
	}
	var errs []error
	for name, value := range map[string]string{"aggregate": f.aggregate, "type": f.eventType, "error-contains": f.errorContains} {
		if cmd.Flags().Changed(name) && value == "" {
			errs = append(errs, usageErrorf("--%s is empty", name))
		}
	}
	filter.AggregateType = f.aggregate
	if i := strings.LastIndexByte(f.aggregate, '/'); i >= 0 {
		id, err := uuid.Parse(f.aggregate[i+1:])
		if err != nil || i == 0 {
			errs = append(errs, usageErrorf("--aggregate: %s is not TYPE/ID, where ID is a UUID", quoteValue(f.aggregate)))
		}
		filter.AggregateType, filter.AggregateID = f.aggregate[:i], uuid.NullUUID{UUID: id, Valid: true}
	}
	if err := filter.Validate(); err != nil {
		errs = append(errs, usageErrorf("%w", err))
	}
	return filter, errors.Join(errs...)
}

const listTable = `Events are listed by their ids, the oldest first unless --newest is given, a page at a time: where there are more, the
last line says how to go on. Every time is in UTC. Payloads are shown by ` + "`outbox dead show ID`" + `.`

func newListCommand(a *app) *cobra.Command {
	var states []string
	for _, s := range admin.States {
		states = append(states, string(s))
	}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List events: what waits, what failed, what was published",
		Long:  "List events that match all flags given.\n\n" + listTable,
		Example: `  outbox list                                       what is not published yet
  outbox list --state retrying --type InvoicePaid
  outbox list --state published --newest --limit 10
  outbox list --state all --aggregate invoice/018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091
  outbox list --state dead -o json | jq -r '.events[].id'`,
		Args: noArguments,
	}
	state := choiceFlag(cmd, "state", "", string(admin.Unpublished), "in this state", states...)
	onlyAsFlags(cmd.Flags(), "state")
	return listing(a, cmd, func() admin.State { return admin.State(state.value) })
}

// listing makes cmd list the events of a state.
func listing(a *app, cmd *cobra.Command, state func() admin.State) *cobra.Command {
	var db databaseFlags
	var filters filterFlags
	page := struct {
		limit  number
		newest bool
		after  eventID
	}{limit: 50}
	filters.add(cmd)
	cmd.Flags().Var(&page.limit, "limit", "how many events a page has")
	cmd.Flags().BoolVar(&page.newest, "newest", false, "the newest first")
	cmd.Flags().Var(&page.after, "after", "go on after the event with this id, in the order of the list")
	onlyAsFlags(cmd.Flags(), "limit", "newest", "after")
	output := choiceFlag(cmd, "output", "o", "text", "how to print it", "text", "json")
	db.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		filter, err := filters.filter(cmd, state())
		addr, addrErr := a.address(cmd, &db)
		if err := errors.Join(err, addrErr); err != nil {
			return err
		}
		var events []admin.Event
		p := admin.Page{Limit: int(page.limit) + 1, Newest: page.newest, After: page.after.value} // one more tells whether there are more
		err = a.onOutbox(cmd.Context(), addr, "list", listTimeout, func(ctx context.Context, conn *pgx.Conn) (err error) {
			events, err = admin.List(ctx, conn, filter, p)
			return err
		})
		if err != nil {
			return err
		}
		var next *int64
		if len(events) > int(page.limit) {
			events = events[:page.limit]
			next = &events[len(events)-1].ID
		}
		if output.value == "json" {
			return outputError(writeJSON(a.stdout, eventPage{events, next}))
		}
		return a.writeEvents(events, next)
	}
	return cmd
}

// eventPage is a page of a list as JSON.
type eventPage struct {
	Events []admin.Event `json:"events"`
	Next   *int64        `json:"next_after"` // what to give to --after for the next page; null: this was the last
}

// onOutbox calls do with a connection to a database that has the schema.
func (a *app) onOutbox(ctx context.Context, addr *address, command string, limit time.Duration, do func(context.Context, *pgx.Conn) error) error {
	conn, err := addr.connect(ctx, command)
	if err != nil {
		return addr.explain(err)
	}
	defer closeConn(ctx, conn)
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
		defer cancel()
	}
	if err := needSchema(ctx, conn); err != nil {
		return addr.explain(err)
	}
	err = do(ctx, conn)
	if cause := context.Cause(ctx); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return explain(err, "%v: narrow it by --type, --aggregate or --newer-than", cause)
	}
	return addr.explain(explainPrivilege(err, addr.config.ConnConfig.User))
}

// onOutboxAlone makes cmd one that takes flags only and works on an outbox, however long that takes. The session has the application's name.
func onOutboxAlone(a *app, application string, cmd *cobra.Command, do func(context.Context, *pgx.Conn) error) *cobra.Command {
	var db databaseFlags
	db.add(cmd)
	cmd.Args = noArguments
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		addr, err := a.address(cmd, &db)
		if err != nil {
			return err
		}
		return a.onOutbox(cmd.Context(), addr, application, 0, do)
	}
	return cmd
}

// needSchema is an error where there is no outbox, or one older than what operators use.
func needSchema(ctx context.Context, conn *pgx.Conn) error {
	there, version, err := readSchema(ctx, eventsdb.New(conn))
	if err != nil {
		return err
	}
	if version < deadIndexVersion {
		return fmt.Errorf("database %q has version %d of the schema, this needs %d: run `outbox migrate up`", there.Database, version, deadIndexVersion)
	}
	return nil
}

// deadIndexVersion is the version of the schema with an index on dead letters by id.
const deadIndexVersion = 10

func (a *app) writeEvents(events []admin.Event, next *int64) error {
	if len(events) == 0 {
		return a.printf("no events\n")
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTATE\tTYPE\tAGGREGATE\tOCCURRED\tFAILURES\tTRIED AGAIN\tLAST ERROR")
	for _, e := range events {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s/%s\t%s\t%d\t%s\t%s\n", e.ID, e.State, printable(e.EventType, errorWidth),
			printable(e.AggregateType, errorWidth), e.AggregateID, stamp(&e.OccurredAt), e.RetryCount, cmp.Or(stamp(e.NextRetryAt), "-"),
			cmp.Or(printable(e.LastError, errorWidth), "-"))
	}
	if err := table.Flush(); err != nil {
		return outputError(err)
	}
	if next != nil {
		return a.printf("there are more: --after %d\n", *next)
	}
	return nil
}

// stamp is a time for people; empty for none.
func stamp(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// printable is text that cannot move a terminal's cursor, cut to a number of characters.
func printable(text string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		b.WriteRune(r)
	}
	return b.String()
}

// parseIDs reads the ids of events from a command line.
func parseIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	var errs []error
	for i, arg := range args {
		id, err := parseID(arg)
		if err != nil {
			errs = append(errs, usageErrorf("%w", err))
		}
		ids[i] = id
	}
	return ids, errors.Join(errs...)
}
