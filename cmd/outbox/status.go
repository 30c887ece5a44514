package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/migrations"
)

const (
	// countAtMost is where counts stop.
	countAtMost = admin.CountAtMost
	// bound is where scans stop: one row more says that there are more.
	bound = countAtMost + 1
	// statusTimeout bounds all questions together.
	statusTimeout = 30 * time.Second
	// closeTimeout bounds the closing of a connection.
	closeTimeout = 3 * time.Second
)

func newStatusCommand(a *app) *cobra.Command {
	var db databaseFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, what failed, what was published, and who works",
		Long: `Show what waits, what failed, what was published, and who works.

  pending    not published, never failed
  retrying   failed, and tried again later; due: its time has come
  dead       failed for good; kept until somebody acts

Counts stop at 100,000 and say so ("100000+"), so that the answer comes at once however large the table is. What was
published is counted among the newest events and those just below the backlog: nothing indexes published_at.`,
		Example: `  outbox status
  outbox status -o json | jq .pending`,
		Args: noArguments,
	}
	db.add(cmd)
	output := choiceFlag(cmd, "output", "o", "text", "how to print it", "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		addr, err := a.address(cmd, &db)
		if err != nil {
			return err
		}
		s, err := readStatus(cmd.Context(), addr)
		if err != nil {
			return addr.explain(explainPrivilege(err, addr.config.ConnConfig.User))
		}
		if output.value == "json" {
			return outputError(writeJSON(a.stdout, s))
		}
		return outputError(writeStatus(a.stdout, s))
	}
	return cmd
}

// status is what `outbox status` shows. In JSON, counts that stopped are listed in at_least.
type status struct {
	Server        string `json:"server"`
	Database      string `json:"database"`
	Standby       bool   `json:"standby"` // of PostgreSQL: what is connected to the primary does not show here
	SchemaVersion int32  `json:"schema_version"`
	SchemaNeeded  int32  `json:"schema_needed"` // by this build

	Owner     *sessionStatus `json:"owner"`
	BlockedBy *sessionStatus `json:"blocked_by"` // who holds the owner's lock and is no worker
	Standbys  int64          `json:"standbys"`   // workers that would take over
	Listeners int64          `json:"listeners"`
	Notify    string         `json:"notify"` // when publishers announce their events: gated, always or off

	Pending             int64    `json:"pending"`
	Due                 int64    `json:"due"`
	Retrying            int64    `json:"retrying"`
	Dead                int64    `json:"dead"`
	PublishedLastMinute int64    `json:"published_last_minute"`
	PublishedLastHour   int64    `json:"published_last_hour"`
	OldestPending       *float64 `json:"oldest_pending_seconds"`

	AtLeast []string `json:"at_least"`
}

// sessionStatus is the session that holds the owner's lock. What its role hides from ours is empty.
type sessionStatus struct {
	PID         int32  `json:"pid"`
	User        string `json:"user"`
	Application string `json:"application"`
	Client      string `json:"client"` // empty over a Unix socket
}

func readStatus(ctx context.Context, addr *address) (*status, error) {
	conn, err := addr.connect(ctx, "status")
	if err != nil {
		return nil, err
	}
	defer closeConn(ctx, conn)
	ctx, cancel := context.WithTimeoutCause(ctx, statusTimeout, errors.New("status took too long"))
	defer cancel()

	s := &status{Server: addr.server(), SchemaNeeded: migrations.Latest, AtLeast: []string{}}
	// One snapshot, so that an event on its way shows once.
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error { return s.read(ctx, tx) })
	return s, err
}

func (s *status) read(ctx context.Context, tx pgx.Tx) error {
	queries := eventsdb.New(tx)
	if _, err := queries.TuneTransaction(ctx); err != nil {
		return fmt.Errorf("set up the transaction: %w", err)
	}
	there, version, err := readSchema(ctx, queries)
	if err != nil {
		return err
	}
	s.Database, s.Standby, s.SchemaVersion = there.Database, there.InRecovery, version
	if version >= migrations.NotifyVersion {
		if s.Notify, err = queries.NotifyMode(ctx); err != nil {
			return fmt.Errorf("look at the trigger: %w", err)
		}
	}
	if err := s.readWorkers(ctx, queries); err != nil {
		return err
	}
	backlog, err := admin.CountBacklog(ctx, tx)
	if err != nil {
		return err
	}
	s.readUnpublished(backlog)
	return s.readPublished(ctx, queries, backlog.OldestPending)
}

// readSchema returns where the schema is, and its version.
func readSchema(ctx context.Context, queries *eventsdb.Queries) (there eventsdb.SchemaThereRow, version int32, err error) {
	if there, err = queries.SchemaThere(ctx); err != nil {
		return there, 0, fmt.Errorf("look for the schema: %w", err)
	}
	if !there.Versioned {
		return there, 0, fmt.Errorf("%w: database %q has no outbox; run `outbox migrate up`", outbox.ErrNotMigrated, there.Database)
	}
	if version, err = queries.SchemaVersion(ctx); err != nil {
		return there, 0, fmt.Errorf("read the schema's version: %w", err)
	}
	return there, version, nil
}

func (s *status) readWorkers(ctx context.Context, queries *eventsdb.Queries) error {
	sessions, err := queries.WorkerSessions(ctx, eventsdb.WorkerSessionsParams{
		OwnerPrefix: pgnames.OwnerApplication, ListenerPrefix: pgnames.ListenerApplication,
	})
	if err != nil {
		return fmt.Errorf("look for workers: %w", err)
	}
	s.Standbys, s.Listeners = sessions.OwnersAndStandbys, sessions.Listeners
	row, err := queries.OwnerSession(ctx, eventsdb.OwnerSessionParams{ApplicationPrefix: pgnames.OwnerApplication, LockKey: int64(pgnames.OwnerLock)})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the owner: %w", err)
	}
	holder := &sessionStatus{PID: row.Pid, User: row.UserName, Application: row.Application, Client: row.Client}
	if !row.Worker {
		s.BlockedBy = holder
		return nil
	}
	s.Owner, s.Standbys = holder, max(0, s.Standbys-1)
	return nil
}

func (s *status) readUnpublished(b admin.Backlog) {
	s.Pending = s.count("pending", b.Pending, b.PendingWhole)
	s.Due = s.count("due", b.Due, b.Due < bound)
	s.Retrying = s.count("retrying", b.Retrying, b.Retrying < bound)
	s.Dead = s.count("dead", b.Dead, b.Dead < bound)
	if b.OldestPending != 0 {
		age := b.OldestPendingAge.Seconds()
		s.OldestPending = &age
	}
}

// readPublished counts what was published of late from the newest id down, and, where the backlog is longer than that
// walk, from its foot down as well.
func (s *status) readPublished(ctx context.Context, queries *eventsdb.Queries, oldestPending int64) error {
	walk := func(below int64) (eventsdb.CountPublishedRow, error) {
		row, err := queries.CountPublished(ctx, eventsdb.CountPublishedParams{Below: below, Bound: bound})
		if err != nil {
			return row, fmt.Errorf("count published events: %w", err)
		}
		return row, nil
	}
	w, err := walk(math.MaxInt64)
	if err != nil {
		return err
	}
	whole := w.Scanned < bound
	minute, minuteWhole := w.LastMinute, whole || w.BeforeMinute > 0
	hour, hourWhole := w.LastHour, whole || w.BeforeHour > 0
	if oldestPending != 0 && !hourWhole && oldestPending <= w.Lowest {
		foot, err := walk(oldestPending)
		if err != nil {
			return err
		}
		minute, hour = minute+foot.LastMinute, hour+foot.LastHour
	}
	s.PublishedLastMinute = s.count("published_last_minute", minute, minuteWhole)
	s.PublishedLastHour = s.count("published_last_hour", hour, hourWhole)
	return nil
}

// count cuts a count at countAtMost and notes whether there may be more.
func (s *status) count(name string, n int64, whole bool) int64 {
	if !whole || n > countAtMost {
		s.AtLeast = append(s.AtLeast, name)
	}
	return min(n, countAtMost)
}

func writeStatus(w io.Writer, s *status) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, value) }
	counted := func(name string, n int64) string {
		text := strconv.FormatInt(n, 10)
		if slices.Contains(s.AtLeast, name) {
			return text + "+"
		}
		return text
	}
	row("database", fmt.Sprintf("%s at %s", s.Database, s.Server))
	row("schema", s.schema())
	row("owner", s.owner())
	row("standbys", strconv.FormatInt(s.Standbys, 10))
	row("listeners", strconv.FormatInt(s.Listeners, 10))
	row("notifications", cmp.Or(s.Notify, "unknown"))
	row("pending", counted("pending", s.Pending))
	row("  oldest", s.oldest())
	row("retrying", counted("retrying", s.Retrying))
	row("  due", counted("due", s.Due))
	row("dead", counted("dead", s.Dead))
	row("published, last minute", counted("published_last_minute", s.PublishedLastMinute))
	row("published, last hour", counted("published_last_hour", s.PublishedLastHour))
	return table.Flush()
}

func (s *status) schema() string {
	switch {
	case s.SchemaVersion < s.SchemaNeeded:
		return fmt.Sprintf("version %d; this build needs %d: run `outbox migrate up`", s.SchemaVersion, s.SchemaNeeded)
	case s.SchemaVersion > s.SchemaNeeded:
		return fmt.Sprintf("version %d; this build knows %d: use a newer outbox", s.SchemaVersion, s.SchemaNeeded)
	}
	return fmt.Sprintf("version %d", s.SchemaVersion)
}

func (s *status) owner() string {
	switch o := s.Owner; {
	case o != nil && o.Client != "":
		return fmt.Sprintf("connected: pid %d, user %s, from %s", o.PID, o.User, o.Client)
	case o != nil:
		return fmt.Sprintf("connected: pid %d, user %s", o.PID, o.User)
	case s.BlockedBy != nil:
		b := s.BlockedBy
		return fmt.Sprintf("none: the lock is held by pid %d, user %s, application %q, which is no worker: nobody delivers events until it ends", b.PID, b.User, b.Application)
	case s.Standby:
		return "unknown: this server is a standby, ask the primary"
	}
	return "none: nobody delivers events, start `outbox run` or the service that embeds the worker"
}

func (s *status) oldest() string {
	if s.OldestPending == nil {
		if s.Pending > 0 || slices.Contains(s.AtLeast, "pending") {
			return "unknown" // behind too many failed events, or with an infinite occurred_at
		}
		return "none"
	}
	age := time.Duration(*s.OldestPending * float64(time.Second))
	if age < time.Minute {
		return age.Round(time.Millisecond).String()
	}
	return age.Round(time.Second).String()
}

// closeConn says goodbye to the server; what comes of it does not matter any more.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
