package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

func statusOf(t *testing.T, db *pgtest.DB) *status {
	t.Helper()
	o := outboxOn(t, db, "status", "-o", "json").succeeds(t)
	s := &status{}
	decoder := json.NewDecoder(strings.NewReader(o.stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(s); err != nil {
		t.Fatalf("%v in %s", err, o.stdout)
	}
	return s
}

// waitForStatus waits until status shows what is wanted of sessions: the server ends one a moment after its client has.
func waitForStatus(t *testing.T, db *pgtest.DB, wanted func(*status) bool) (s *status) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		if s = statusOf(t, db); !wanted(s) {
			return fmt.Errorf("owner %+v, blocked by %+v, %+v", s.Owner, s.BlockedBy, s)
		}
		return nil
	})
	return s
}

// everyState makes 2 pending, 3 due, 4 waiting and 5 dead events, and published ones of 30 s, 30 min and 2 h ago, 6, 7 and 8.
const everyState = `
	INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at, published_at, retry_count, next_retry_at)
	SELECT 'invoice', gen_random_uuid(), 'E', '{}', now() - interval '3 h', now() - s.published_ago, s.retry_count, s.next_retry_at
	FROM (VALUES (8, interval '2 h', 0, NULL), (7, interval '30 min', 0, NULL), (6, interval '30 s', 0, NULL),
	             (5, NULL, 10, 'infinity'), (4, NULL, 1, now() + interval '1 h'), (3, NULL, 10, now() - interval '1 s'), (2, NULL, 0, NULL)
	     ) AS s (n, published_ago, retry_count, next_retry_at), generate_series(1, s.n)`

func TestStatus(t *testing.T) {
	t.Parallel()

	t.Run("counts events by state", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		execSQL(t, db, everyState)
		s := statusOf(t, db)
		if s.Pending != 2 || s.Retrying != 7 || s.Due != 3 || s.Dead != 5 || s.PublishedLastMinute != 6 || s.PublishedLastHour != 13 || len(s.AtLeast) != 0 {
			t.Errorf("%+v", s)
		}
		if s.OldestPending == nil || *s.OldestPending < 3*3600 || *s.OldestPending > 4*3600 {
			t.Errorf("oldest pending: %v", s.OldestPending)
		}
		if s.Database != db.Name || s.SchemaVersion != migrations.Latest || s.SchemaNeeded != migrations.Latest || s.Standby {
			t.Errorf("%+v", s)
		}
	})
	t.Run("of an empty outbox are all zero", func(t *testing.T) {
		t.Parallel()
		s := statusOf(t, pgtest.Database(t))
		if s.Pending != 0 || s.Retrying != 0 || s.Due != 0 || s.Dead != 0 || s.PublishedLastHour != 0 || s.OldestPending != nil || s.Owner != nil || s.Listeners != 0 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("an infinite occurred_at and one in the future do no harm", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		execSQL(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
			SELECT 'a', gen_random_uuid(), 'E', '{}', at FROM unnest(ARRAY['infinity', '-infinity', now() + interval '1 h']::timestamptz[]) at`)
		if s := statusOf(t, db); s.Pending != 3 || s.OldestPending == nil || *s.OldestPending != 0 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("prints a table", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		execSQL(t, db, everyState)
		o := outboxOn(t, db, "status").succeeds(t)
		for _, line := range []string{
			"database                " + db.Name + " at ", fmt.Sprintf("schema                  version %d\n", migrations.Latest), "owner                   none: nobody delivers events",
			"listeners               0\n", "notifications           gated\n", "pending                 2\n", "  oldest                3h0m0s\n", "retrying                7\n", "  due                   3\n",
			"dead                    5\n", "published, last minute  6\n", "published, last hour    13\n",
		} {
			if !strings.Contains(o.stdout, line) {
				t.Errorf("no %q in\n%s", line, o.stdout)
			}
		}
	})
	t.Run("shows the owner, its standby and who listens", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		startWorker(t, db, "--sink", "discard")
		startWorker(t, db, "--sink", "discard")
		waitForStatus(t, db, func(s *status) bool {
			return s.Owner != nil && s.Owner.PID != 0 && strings.HasPrefix(s.Owner.Application, "outbox/owner") && s.Standbys == 1 && s.Listeners == 2
		})
		if o := outboxOn(t, db, "status").succeeds(t); !strings.Contains(o.stdout, "connected: pid ") {
			t.Errorf("%s", o.stdout)
		}
	})
	t.Run("a session that holds the lock and is no worker is not the owner, and whoever waits for it is a standby", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		holder := db.Connect(t)
		if _, err := holder.Exec(t.Context(), "SET application_name = 'left in a pooler'"); err != nil {
			t.Fatal(err)
		}
		if got, err := eventsdb.New(holder).TryOwn(t.Context(), pgnames.OwnerLock); err != nil || !got.Owned {
			t.Fatalf("owned: %+v, error %v", got, err)
		}
		startWorker(t, db, "--sink", "discard")
		s := waitForStatus(t, db, func(s *status) bool {
			return s.Owner == nil && s.BlockedBy != nil && s.BlockedBy.PID == int32(holder.PgConn().PID()) && s.Standbys == 1 && s.Listeners == 1
		})
		want := fmt.Sprintf("none: the lock is held by pid %d, user %s, application \"left in a pooler\", which is no worker: ", holder.PgConn().PID(), s.BlockedBy.User)
		if o := outboxOn(t, db, "status").succeeds(t); !strings.Contains(o.stdout, want) {
			t.Errorf("no %q in\n%s", want, o.stdout)
		}
	})
	t.Run("counts stop at 100,000, and say so", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		// Published ones first, below a backlog that is longer than the walk from the newest event.
		execSQL(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
			SELECT 'a', gen_random_uuid(), 'E', '{}', now() FROM generate_series(1, 10)`)
		execSQL(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'a', gen_random_uuid(), 'E', '{}' FROM generate_series(1, 100001)`)
		s := statusOf(t, db)
		if s.Pending != 100_000 || s.PublishedLastMinute != 10 || s.PublishedLastHour != 10 {
			t.Errorf("%+v", s)
		}
		if !slices.Equal(s.AtLeast, []string{"pending", "published_last_minute", "published_last_hour"}) {
			t.Errorf("at least: %v", s.AtLeast)
		}
		if o := outboxOn(t, db, "status").succeeds(t); !strings.Contains(o.stdout, "pending                 100000+\n") {
			t.Errorf("%s", o.stdout)
		}
	})
}

// What bounds `outbox status` is that each of its scans stops after so many rows of the indexes that it names.
func TestStatusReadsIndexes(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	execSQL(t, db, `ALTER TABLE events.outbox SET (autovacuum_enabled = false)`)
	execSQL(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, published_at, next_retry_at)
		SELECT 'a', gen_random_uuid(), 'E', '{}', CASE WHEN i % 4 = 0 THEN now() END,
		       CASE WHEN i % 4 = 1 THEN 'infinity' WHEN i % 4 = 2 THEN now() END::timestamptz
		FROM generate_series(1, 20000) i`)
	const most = 1000
	queries := map[string]struct {
		ask     func(context.Context, *eventsdb.Queries) error
		indexes []string
	}{
		"CountUnfailed": {func(ctx context.Context, q *eventsdb.Queries) error {
			_, err := q.CountUnfailed(ctx, most)
			return err
		}, []string{"outbox_unpublished_idx", "outbox_dead_idx", "outbox_pkey"}},
		"CountFailed": {func(ctx context.Context, q *eventsdb.Queries) error {
			_, err := q.CountFailed(ctx, most)
			return err
		}, []string{"outbox_retry_due_idx"}},
		"OldestUnfailed": {func(ctx context.Context, q *eventsdb.Queries) error {
			_, err := q.OldestUnfailed(ctx, most)
			return err
		}, []string{"outbox_unpublished_idx", "outbox_dead_idx", "outbox_pkey"}},
		"CountPublished": {func(ctx context.Context, q *eventsdb.Queries) error {
			_, err := q.CountPublished(ctx, eventsdb.CountPublishedParams{Below: math.MaxInt64, Bound: most})
			return err
		}, []string{"outbox_pkey"}},
	}
	for _, statistics := range []struct{ name, sql string }{
		{"without statistics", "SELECT"},
		{"with statistics", "ANALYZE events.outbox"},
		{"with statistics of another time", "UPDATE events.outbox SET published_at = now() WHERE id > 2000"},
	} {
		execSQL(t, db, statistics.sql)
		for name, query := range queries {
			t.Run(name+" "+statistics.name, func(t *testing.T) {
				plan := planOf(t, db, query.ask)
				scanned := map[string]bool{}
				plan.walk(func(n planNode) {
					if n.Relation == "outbox" {
						scanned[n.Index] = true
					}
					if n.Type == "Nested Loop" || n.Rows*n.Loops > most {
						t.Errorf("%s by %q: %v times %v rows", n.Type, n.Index, n.Loops, n.Rows)
					}
				})
				if got := slices.Sorted(maps.Keys(scanned)); !slices.Equal(got, slices.Sorted(slices.Values(query.indexes))) {
					t.Errorf("it reads %q, not %q", got, query.indexes)
				}
			})
		}
	}
}

// Dead letters lie all over a large table: to read a page of each takes seconds where they are not in memory.
func TestStatusReadsNoDeadLetters(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	execSQL(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, next_retry_at)
		SELECT 'a', gen_random_uuid(), 'E', '{}', CASE WHEN i % 100 <> 0 THEN 'infinity' END::timestamptz
		FROM generate_series(1, 1000) i`)
	pgtest.Eventually(t, func() error { // a snapshot of the server's own can be in the way
		execSQL(t, db, `VACUUM ANALYZE events.outbox`)
		var pages, visible int
		if err := db.Pool.QueryRow(t.Context(), `SELECT relpages, relallvisible FROM pg_class WHERE oid = 'events.outbox'::regclass`).Scan(&pages, &visible); err != nil || visible < pages {
			return fmt.Errorf("%d of %d pages visible: %v", visible, pages, err)
		}
		return nil
	})
	for name, query := range map[string]struct {
		ask  func(context.Context, *eventsdb.Queries) error
		rows float64 // that the table is asked for
	}{
		"CountUnfailed": {func(ctx context.Context, q *eventsdb.Queries) error {
			_, err := q.CountUnfailed(ctx, 5000)
			return err
		}, 10},
		"CountFailed": {func(ctx context.Context, q *eventsdb.Queries) error {
			_, err := q.CountFailed(ctx, 5000)
			return err
		}, 0},
		"OldestUnfailed": {func(ctx context.Context, q *eventsdb.Queries) error {
			_, err := q.OldestUnfailed(ctx, 5000)
			return err
		}, 2}, // the one, and its age
	} {
		t.Run(name, func(t *testing.T) {
			rows := 0.0
			plan := planOf(t, db, query.ask)
			plan.walk(func(n planNode) {
				switch {
				case n.Relation != "outbox":
				case n.Type == "Index Only Scan":
					rows += n.HeapFetches
				default:
					rows += n.Rows * n.Loops
				}
			})
			if rows != query.rows {
				t.Errorf("%v rows of the table, not %v", rows, query.rows)
			}
		})
	}
}

// planOf returns the plan by which a query of the generated code was executed.
func planOf(t *testing.T, db *pgtest.DB, ask func(context.Context, *eventsdb.Queries) error) planNode {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := eventsdb.New(tx).TuneTransaction(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := &explainer{Tx: tx}
	if err := ask(t.Context(), eventsdb.New(e)); !errors.Is(err, errExplained) {
		t.Fatal(err)
	}
	return e.plan
}

// explainer is a transaction in which the generated code's queries are explained instead of answered.
type explainer struct {
	pgx.Tx
	plan planNode
}

// errExplained is what the generated code gets for an answer.
var errExplained = errors.New("explained")

func (e *explainer) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	var plans []struct{ Plan planNode }
	if err := e.Tx.QueryRow(ctx, "EXPLAIN (ANALYZE, FORMAT JSON) "+sql, args...).Scan(&plans); err != nil {
		return failedRow{err}
	}
	e.plan = plans[0].Plan
	return failedRow{errExplained}
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// planNode is a node of a plan.
type planNode struct {
	Type        string  `json:"Node Type"`
	Relation    string  `json:"Relation Name"`
	Index       string  `json:"Index Name"`
	Rows        float64 `json:"Actual Rows"`
	Loops       float64 `json:"Actual Loops"`
	HeapFetches float64 `json:"Heap Fetches"`
	Plans       []planNode
}

func (n *planNode) walk(visit func(planNode)) {
	visit(*n)
	for i := range n.Plans {
		n.Plans[i].walk(visit)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		n, want int64
		whole   bool
		atLeast string
	}{
		{5, 5, true, "[]"},
		{5, 5, false, "[x]"},
		{100_000, 100_000, true, "[]"},
		{100_001, 100_000, true, "[x]"},
	} {
		s := &status{}
		if got := s.count("x", tt.n, tt.whole); got != tt.want || fmt.Sprint(s.AtLeast) != tt.atLeast {
			t.Errorf("%+v: %d, %v", tt, got, s.AtLeast)
		}
	}
}
