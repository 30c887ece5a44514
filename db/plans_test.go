package db_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// The layout of the table in [TestPlans]. Published events have the low ids, as in life; below the live
// ones there is room for more of them.
const (
	aggregates = 200
	live       = 1_000_000 // the last id before the live events
	pending    = live + 1
	due        = pending + 2_000
	waiting    = due + 300
	dead       = waiting + 300
	settled    = dead + 300 // pending too: here are the events that are marked, each range once, as marks leave dead rows behind
	end        = settled + 12_000
)

// publish inserts published events with ids in a range.
func publish(t *testing.T, conn *pgx.Conn, from, to int) {
	t.Helper()
	exec(t, conn, fmt.Sprintf(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload, published_at)
		SELECT i, 'order', lpad(to_hex(i %% %d), 32, '0')::uuid, 'Placed', '{"data": 1}', now() FROM generate_series(%d, %d) i`, aggregates, from, to))
}

// fill inserts the live events, with ids shifted up.
func fill(t *testing.T, conn *pgx.Conn, shift int) {
	t.Helper()
	exec(t, conn, fmt.Sprintf(`INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at)
		SELECT i + %[8]d, 'order', lpad(to_hex(i %% %[1]d), 32, '0')::uuid, 'Placed', '{"data": 1}',
		       CASE WHEN i < %[3]d OR i >= %[6]d THEN 0 WHEN i < %[5]d THEN 1 ELSE 10 END,
		       CASE WHEN i < %[3]d OR i >= %[6]d THEN NULL
		            WHEN i < %[4]d THEN now() - i * interval '1 ms'
		            WHEN i < %[5]d THEN now() + i * interval '1 ms'
		            ELSE 'infinity' END
		FROM generate_series(%[2]d, %[7]d) i`, aggregates, pending, due, waiting, dead, settled, end, shift))
}

// uuids returns the ids of the first n aggregates.
func uuids(n int) (list []uuid.UUID) {
	for i := range n {
		list = append(list, uuid.UUID{15: byte(i)})
	}
	return list
}

// ids returns n ids from first on.
func ids(first, n int) (list []int64) {
	for i := range n {
		list = append(list, int64(first+i))
	}
	return list
}

// question is a run-time query with the arguments of a busy moment, and what it may cost.
type question struct {
	name    string
	ask     func(ctx context.Context, q *eventsdb.Queries, n int) error // n events from a range that nobody else marks
	indexes []string                                                    // all that it may read
	buffers int                                                         // the most pages that it may read to find rows
}

// ignored drops a result that an explained query does not have.
func ignored[T any](_ T, err error) error { return err }

// ofOwner are the queries of the owner's session.
var ofOwner = []question{
	{"FetchPage", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.FetchPage(ctx, eventsdb.FetchPageParams{
			GapsFrom: ids(pending, 20), GapsTo: ids(pending, 20), Cursor: pending + 99, RowBytes: 1 << 20, PageSize: 50, HoldBack: true,
		}))
	}, []string{"outbox_retry_aggregate_idx", "outbox_unpublished_idx"}, 400},
	{"FetchNew", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.FetchNew(ctx, eventsdb.FetchNewParams{Cursor: pending + 99, RowBytes: 1 << 20, PageSize: 50}))
	}, []string{"outbox_unpublished_idx"}, 100},
	{"FetchByID", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.FetchByID(ctx, eventsdb.FetchByIDParams{Ids: ids(pending, 50), MaxBytes: 1 << 20, HoldBack: true}))
	}, []string{"outbox_retry_aggregate_idx", "outbox_unpublished_idx"}, 500},
	{"ReloadLanes", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.ReloadLanes(ctx, eventsdb.ReloadLanesParams{
			HoldBack: true, MaxBytes: 1 << 20, PerLane: 17,
			AggregateTypes: slices.Repeat([]string{"order"}, 10), AggregateIds: uuids(10), FromIds: ids(pending, 10),
		}))
	}, []string{"outbox_delivery_pkey", "outbox_retry_aggregate_idx", "outbox_unpublished_aggregate_idx"}, 1500},
	{"FetchDue", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.FetchDue(ctx, eventsdb.FetchDueParams{
			AfterTime: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, PageSize: 100,
		}))
	}, []string{"outbox_retry_due_idx"}, 800},
	{"SweepReach", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.SweepReach(ctx, eventsdb.SweepReachParams{AfterID: 0, UpTo: end, Most: 50}))
	}, []string{"outbox_unpublished_idx"}, 100},
	{"SweepSlice", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.SweepSlice(ctx, eventsdb.SweepSliceParams{AfterID: 0, UpTo: pending + 100, HoldBack: true}))
	}, []string{"outbox_retry_aggregate_idx", "outbox_unpublished_idx"}, 400},
	{"ReadSequence", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.ReadSequence(ctx, sequence))
	}, []string{"pg_database_datname_index"}, 40},
}

// ofPool are the queries of pooled sessions, with settings that are not ours.
var ofPool = []question{
	{"MarkPublishedBatch", func(ctx context.Context, q *eventsdb.Queries, from int) error {
		return q.MarkPublishedBatch(ctx, eventsdb.MarkPublishedBatchParams{Ids: ids(from, batch)})
	}, []string{"outbox_pkey"}, 8 * batch},
	{"MarkRetryBatch", func(ctx context.Context, q *eventsdb.Queries, from int) error {
		return ignored(q.MarkRetryBatch(ctx, eventsdb.MarkRetryBatchParams{
			Ids: ids(from, batch), RetryCounts: make([]int32, batch), LastErrors: slices.Repeat([]string{"failed"}, batch), DelaysUs: make([]int64, batch),
		}))
	}, []string{"outbox_pkey"}, 8 * batch},
	{"MarkDeadBatch", func(ctx context.Context, q *eventsdb.Queries, from int) error {
		return q.MarkDeadBatch(ctx, eventsdb.MarkDeadBatchParams{
			Ids: ids(from, batch), RetryCounts: make([]int32, batch), LastErrors: slices.Repeat([]string{"failed"}, batch),
		})
	}, []string{"outbox_pkey"}, 8 * batch},
	{"RecordDeliveries", func(ctx context.Context, q *eventsdb.Queries, from int) error {
		return q.RecordDeliveries(ctx, eventsdb.RecordDeliveriesParams{
			Ids: ids(from, batch), Subscribers: slices.Repeat([]string{"mail"}, batch), Dead: make([]bool, batch),
		})
	}, []string{"outbox_pkey"}, 8 * batch},
	{"MarkPublished", func(ctx context.Context, q *eventsdb.Queries, from int) error {
		return q.MarkPublished(ctx, int64(from))
	}, []string{"outbox_pkey", "outbox_unpublished_idx"}, 10},
	{"MarkRetry", func(ctx context.Context, q *eventsdb.Queries, from int) error {
		return q.MarkRetry(ctx, eventsdb.MarkRetryParams{ID: int64(from), LastError: "failed", DelayUs: 1})
	}, []string{"outbox_pkey", "outbox_unpublished_idx"}, 10},
}

// ofOperator are the queries of operators, planned for each filter: see db.FreshPlans.
var ofOperator = []question{
	{"MatchOldest, dead", match("dead", func(*eventsdb.MatchOldestParams) {}), []string{"outbox_dead_idx"}, 100},
	{"MatchOldest, dead of a type", match("dead", func(p *eventsdb.MatchOldestParams) { p.EventType = new("none") }), []string{"outbox_dead_idx", "outbox_event_type_occurred_idx"}, 400},
	{"MatchOldest, pending", match("pending", func(*eventsdb.MatchOldestParams) {}), []string{"outbox_unpublished_idx"}, 100},
	{"MatchOldest, unpublished of an aggregate", match("unpublished", func(p *eventsdb.MatchOldestParams) {
		p.AggregateType, p.AggregateID = new("order"), uuid.NullUUID{Valid: true}
	}), []string{"outbox_unpublished_aggregate_idx", "outbox_unpublished_idx"}, 5000}, // where many of the events are of the aggregate, by the statistics
	{"MatchNewest, published", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.MatchNewest(ctx, eventsdb.MatchNewestParams{UpTo: live, State: "published", PageSize: 50}))
	}, []string{"outbox_pkey"}, 100},
	{"EventsByID", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.EventsByID(ctx, eventsdb.EventsByIDParams{Ids: ids(pending, 50), Payloads: true}))
	}, []string{"outbox_pkey"}, 400},
	{"LockEvents", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.LockEvents(ctx, ids(dead, 50)))
	}, []string{"outbox_pkey"}, 400},
	{"ArchiveRange", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.ArchiveRange(ctx, eventsdb.ArchiveRangeParams{After: 0, RetentionUs: 1, PageSize: 50}))
	}, []string{"outbox_pkey"}, 400},
	{"DeletePublished", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.DeletePublished(ctx, ids(1, 50)))
	}, []string{"outbox_pkey"}, 600},
	{"EventLines", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.EventLines(ctx, ids(dead, 50)))
	}, []string{"outbox_delivery_pkey", "outbox_pkey"}, 400},
}

// ofLookups are those of an operator's transaction that look into aggregates.
var ofLookups = []question{
	{"Surroundings", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.Surroundings(ctx, eventsdb.SurroundingsParams{ID: dead, Bound: 20}))
	}, []string{"outbox_aggregate_idx", "outbox_pkey", "outbox_retry_aggregate_idx", "outbox_unpublished_aggregate_idx"}, 400},
	{"HeldBack", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.HeldBack(ctx, ids(dead, 50)))
	}, []string{"outbox_pkey", "outbox_retry_aggregate_idx"}, 800},
	{"LaterPublished", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		return ignored(q.LaterPublished(ctx, eventsdb.LaterPublishedParams{Ids: ids(dead, 50), Bound: 20}))
	}, []string{"outbox_aggregate_idx", "outbox_pkey"}, 2500},
}

// match asks for a page of the events of a state.
func match(state string, narrow func(*eventsdb.MatchOldestParams)) func(context.Context, *eventsdb.Queries, int) error {
	return func(ctx context.Context, q *eventsdb.Queries, _ int) error {
		p := eventsdb.MatchOldestParams{UpTo: end, State: state, PageSize: 50}
		narrow(&p)
		return ignored(q.MatchOldest(ctx, p))
	}
}

// specified is the specification's fetch. Nothing of ours runs it. Under statistics from another time it may sort the whole
// backlog, out of any index that has only that.
var specified = question{"FetchUnpublishedBatch", func(ctx context.Context, q *eventsdb.Queries, _ int) error {
	return ignored(q.FetchUnpublishedBatch(ctx, 50))
}, []string{"outbox_unpublished_idx"}, 100}

// batch is how many events are marked at once, as they are under load.
const batch = 300

// survey explains questions in one database, again while it changes.
type survey struct {
	settled int            // the first event that nothing has marked
	costs   map[string]int // pages by session and query, at the last look
}

func (s *survey) look(t *testing.T, session *explainer, kind string, questions ...question) {
	t.Helper()
	for _, q := range questions {
		from := s.settled
		p := session.explain(t, func(queries *eventsdb.Queries) error { return q.ask(t.Context(), queries, from) })
		if p.root.Type == "ModifyTable" {
			s.settled += int(p.root.Plans[0].Rows)
		}
		for _, index := range p.indexes() {
			if !slices.Contains(q.indexes, index) {
				t.Errorf("%s, %s: read %s, want only %s\n%s", kind, q.name, index, strings.Join(q.indexes, ", "), p)
			}
		}
		if p.buffers() > q.buffers {
			t.Errorf("%s, %s: read %d pages, want at most %d\n%s", kind, q.name, p.buffers(), q.buffers, p)
		}
		key := kind + q.name
		if before, known := s.costs[key]; known && p.buffers() > before*2+20 { // an index may have grown a level, and updates leave dead rows
			t.Errorf("%s, %s: read %d pages, but %d while fewer events were published\n%s", kind, q.name, p.buffers(), before, p)
		}
		s.costs[key] = p.buffers()
	}
}

// owner opens a session with the settings of an owner's.
func owner(t *testing.T, d *pgtest.DB) *explainer {
	t.Helper()
	conn := d.Connect(t)
	if _, err := eventsdb.New(conn).TuneSession(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &explainer{conn: conn}
}

// pooled opens a session with the settings of a pool's, and one of plan_cache_mode.
func pooled(t *testing.T, d *pgtest.DB, mode string) *explainer {
	t.Helper()
	conn := d.Connect(t)
	exec(t, conn, "SET plan_cache_mode = "+mode)
	return &explainer{conn: conn}
}

// TestPlans explains the run-time queries under statistics from another time, and under good ones: each reads the
// index that its comment names, and does not get dearer with the number of published events.
func TestPlans(t *testing.T) {
	t.Parallel()
	modes := []string{"auto", "force_custom_plan", "force_generic_plan"}
	for name, prepare := range map[string]func(t *testing.T, conn *pgx.Conn){
		"statistics of an empty table":         func(*testing.T, *pgx.Conn) {},
		"statistics of a table with a backlog": func(t *testing.T, conn *pgx.Conn) { fill(t, conn, end) },
		"statistics of a backlog of one aggregate": func(t *testing.T, conn *pgx.Conn) {
			fill(t, conn, end)
			exec(t, conn, "UPDATE events.outbox SET aggregate_id = 'ffffffff-0000-0000-0000-000000000000'")
		},
		// As an archive leaves them to a redrive. ANALYZE reads all of so few rows; by how the shares are rounded, nothing is < infinity.
		"statistics of dead letters among published events": func(t *testing.T, conn *pgx.Conn) {
			publish(t, conn, -22_000, -2_001)
			exec(t, conn, `INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at)
				SELECT i, 'order', gen_random_uuid(), 'Placed', '{"data": 1}', 10, 'infinity' FROM generate_series(-2000, -1) i`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Database(t)
			conn := d.Connect(t)
			exec(t, conn, "ALTER TABLE events.outbox SET (autovacuum_enabled = off)")
			prepare(t, conn)
			exec(t, conn, "ANALYZE events.outbox", "DELETE FROM events.outbox")

			early := owner(t, d) // its plans are from before there was anything to read
			for _, q := range ofOwner {
				early.explain(t, func(queries *eventsdb.Queries) error { return q.ask(t.Context(), queries, 0) })
			}

			s := &survey{settled: settled, costs: map[string]int{}}
			look := func() {
				s.look(t, early, "owner of long ago", ofOwner...)
				s.look(t, owner(t, d), "owner", ofOwner...)
				for _, mode := range modes {
					s.look(t, pooled(t, d, mode), mode, ofPool...)
				}
				operator := pooled(t, d, "force_custom_plan")
				s.look(t, operator, "operator", ofOperator...)
				operator.tune = func(ctx context.Context, q *eventsdb.Queries) error { return q.TuneLookups(ctx) }
				s.look(t, operator, "operator, tuned", ofLookups...)
			}
			publish(t, conn, 1, 10_000)
			fill(t, conn, 0)
			look()
			publish(t, conn, 10_001, 40_000)
			look()
			stale := specified
			stale.indexes = append(stale.indexes, "outbox_unpublished_aggregate_idx")
			stale.buffers = 1000
			s.look(t, pooled(t, d, "auto"), "", stale)

			exec(t, conn, "VACUUM ANALYZE events.outbox")
			look()
			for _, mode := range modes {
				s.look(t, pooled(t, d, mode), mode, specified)
			}
		})
	}
}
