package db_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/temppg"
)

// What a row can be, as an UPDATE sets it.
const (
	isPending   = ""
	isDue       = "retry_count = 1, next_retry_at = now() - interval '1 second'"
	isWaiting   = "retry_count = 1, next_retry_at = now() + interval '1 hour'"
	isDead      = "retry_count = 10, next_retry_at = 'infinity'"
	isPublished = "published_at = now()"
)

// add publishes an event of an aggregate and puts it into a state.
func add(t *testing.T, db eventsdb.DBTX, aggregate byte, state string) (id int64) {
	t.Helper()
	return addPayload(t, db, aggregate, state, "{}")
}

func addPayload(t *testing.T, db eventsdb.DBTX, aggregate byte, state, payload string) (id int64) {
	t.Helper()
	id = value[int64](t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('order', $1, 'Placed', $2::text::jsonb) RETURNING id`, uuid.UUID{aggregate}, payload)
	if state != isPending {
		exec(t, db, fmt.Sprintf("UPDATE events.outbox SET %s WHERE id = %d", state, id))
	}
	return id
}

// fetchPage is FetchPage with plenty of room, taken apart.
func fetchPage(t *testing.T, db eventsdb.DBTX, change func(*eventsdb.FetchPageParams)) (below []int64, rows []eventsdb.FetchPageRow) {
	t.Helper()
	params := eventsdb.FetchPageParams{RowBytes: 1 << 20, PageSize: 1000, HoldBack: true}
	if change != nil {
		change(&params)
	}
	found, err := eventsdb.New(db).FetchPage(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range found {
		if first := i == 0; first != (f.Below != nil) || !first && f.ID <= params.Cursor {
			t.Fatalf("row %d is out of place: %+v", f.ID, found)
		}
	}
	return found[0].Below, found[1:]
}

// pageIDs returns the ids of new rows.
func pageIDs(rows []eventsdb.FetchPageRow) (ids []int64) {
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestFetchPageParts(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)

	below, rows := fetchPage(t, d.Pool, nil)
	if len(below)+len(rows) > 0 {
		t.Errorf("an empty table: below %v, rows %v", below, rows)
	}

	late, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.Background()) }()
	add(t, late, 1, isPending)                                // 1, not committed
	add(t, d.Pool, 2, isPending)                              // 2
	add(t, d.Pool, 3, isPublished)                            // 3
	add(t, d.Pool, 4, isPending)                              // 4
	exec(t, d.Pool, "SELECT nextval('events.outbox_id_seq')") // 5, of nobody
	below, rows = fetchPage(t, d.Pool, nil)
	equal(t, "below, before the late commit", below, nil)
	equal(t, "new, before the late commit", pageIDs(rows), []int64{2, 4})

	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	add(t, d.Pool, 6, isPending) // 6
	below, rows = fetchPage(t, d.Pool, func(p *eventsdb.FetchPageParams) {
		p.GapsFrom, p.GapsTo, p.Cursor = []int64{1, 3}, []int64{1, 3}, 4
	})
	equal(t, "below, in two gaps", below, []int64{1})
	equal(t, "new, from cursor 4", pageIDs(rows), []int64{6})
	below, _ = fetchPage(t, d.Pool, func(p *eventsdb.FetchPageParams) { p.GapsFrom, p.GapsTo, p.Cursor = []int64{2}, []int64{4}, 4 })
	equal(t, "below, in one that is wide", below, []int64{2, 4})
	_, rows = fetchPage(t, d.Pool, func(p *eventsdb.FetchPageParams) { p.PageSize = 2 })
	equal(t, "new, in a page of 2", pageIDs(rows), []int64{1, 2})
}

// TestFetchPageSnapshot commits pairs of rows, one below the cursor and one above. Whoever sees one sees the other.
func TestFetchPageSnapshot(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	const cursor, pairs = 1000, 300
	writer := d.Connect(t)
	written := make(chan error, 1)
	go func() {
		for i := range pairs {
			_, err := writer.Exec(t.Context(), `INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
				SELECT id, 'order', gen_random_uuid(), 'Placed', '{}' FROM unnest(ARRAY[$1::bigint, $2]) id`, i+1, cursor+i+1)
			if err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	reader := d.Connect(t)
	for seen := 0; seen < pairs; {
		below, rows := fetchPage(t, reader, func(p *eventsdb.FetchPageParams) {
			p.GapsFrom, p.GapsTo, p.Cursor = []int64{1}, []int64{cursor}, cursor
		})
		if len(below) != len(rows) {
			t.Fatalf("%d rows below the cursor and %d above", len(below), len(rows))
		}
		seen = len(rows)
		select {
		case err := <-written:
			if err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
}

func TestFetchPageStates(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	const pending, due, waiting, dead = 0, 1, 2, 3
	cases := []struct {
		what      string
		aggregate byte
		set       string
		state     int32
		blocked   bool
	}{
		{"a pending event", 1, isPending, pending, false},
		{"a second one of its aggregate", 1, isPending, pending, false},
		{"an event whose retry is due", 2, isDue, due, false},
		{"a pending event behind it", 2, isPending, pending, true},
		{"an event that waits for its retry", 3, isWaiting, waiting, false},
		{"a pending event behind it", 3, isPending, pending, true},
		{"a due event behind it", 3, isDue, due, false}, // which is not looked up
		{"a dead letter behind it", 3, isDead, dead, false},
		{"a dead letter", 4, isDead, dead, false},
		{"a pending event behind it", 4, isPending, pending, false},
		{"an event due since for ever", 5, "next_retry_at = '-infinity'", due, false},
		{"a pending event behind it", 5, isPending, pending, true},
		{"a pending event before a failed one", 6, isPending, pending, false},
		{"a failed event behind a pending one", 6, isWaiting, waiting, false},
		{"an event of another type of aggregate, with the id of a blocked one", 2, "aggregate_type = 'invoice'", pending, false},
	}
	var ids []int64
	add(t, d.Pool, 7, isDue+", "+isPublished) // published, and so holds nothing back
	for _, c := range cases {
		ids = append(ids, add(t, d.Pool, c.aggregate, c.set))
	}
	ids = append(ids, add(t, d.Pool, 7, isPending))

	_, rows := fetchPage(t, d.Pool, nil)
	equal(t, "new", pageIDs(rows), ids)
	byID, err := eventsdb.New(d.Pool).FetchByID(t.Context(), eventsdb.FetchByIDParams{Ids: append([]int64{1}, ids...), MaxBytes: 1 << 20, HoldBack: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(byID) != len(rows) {
		t.Fatalf("FetchByID found %d rows, want %d", len(byID), len(rows))
	}
	fresh := must(eventsdb.New(d.Pool).FetchNew(t.Context(), eventsdb.FetchNewParams{Cursor: ids[0] - 1, RowBytes: 1 << 20, PageSize: 1000}))(t)
	if len(fresh) != len(rows) {
		t.Fatalf("FetchNew found %d rows, want %d", len(fresh), len(rows))
	}
	for i, c := range cases {
		if n, r := fresh[i], rows[i]; n.ID != r.ID || n.State != r.State || (n.Payload != nil) != (c.state == pending) || n.RetryCount != r.RetryCount {
			t.Errorf("%s: FetchNew returns %+v, FetchPage %+v", c.what, n, r)
		}
		if r := rows[i]; r.State != c.state || r.Blocked != c.blocked {
			t.Errorf("%s: state %d, blocked %t; want %d, %t", c.what, r.State, r.Blocked, c.state, c.blocked)
		}
		if handled := c.state == pending && !c.blocked; (rows[i].Payload != nil) != handled {
			t.Errorf("%s: payload %q", c.what, rows[i].Payload)
		}
		if f, r := byID[i], rows[i]; f.ID != r.ID || f.State != r.State || f.Blocked != r.Blocked || string(f.Payload) != string(r.Payload) || f.RetryCount != r.RetryCount {
			t.Errorf("%s: FetchByID returns %+v, FetchPage %+v", c.what, f, r)
		}
	}
	if last := rows[len(cases)]; last.Blocked {
		t.Error("an event behind a published one that had failed is blocked")
	}

	_, rows = fetchPage(t, d.Pool, func(p *eventsdb.FetchPageParams) { p.HoldBack = false })
	for i, c := range cases {
		if r := rows[i]; r.State != c.state || r.Blocked || (r.Payload != nil) != (c.state == pending) {
			t.Errorf("%s, without holding back: state %d, blocked %t, payload %q", c.what, r.State, r.Blocked, r.Payload)
		}
	}
}

func TestFetchPageBytes(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	small := addPayload(t, d.Pool, 1, isPending, `{"data": "0123456789"}`)
	large := addPayload(t, d.Pool, 1, isPending, `{"data": "0123456789a"}`)
	again := addPayload(t, d.Pool, 1, isPending, `{"data": "0123456789"}`)
	zipped := value[int64](t, d.Pool, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('order', gen_random_uuid(), 'Placed', jsonb_build_object('data', repeat('compressible', 100000))) RETURNING id`)
	size := value[int64](t, d.Pool, "SELECT pg_column_size(payload) FROM events.outbox WHERE id = $1", small)
	for _, c := range []struct {
		name     string
		rowBytes int64
		with     []int64
	}{
		{"a row of exactly so many bytes has its payload, a larger one has not", size, []int64{small, again}},
		{"one byte more", size + 1, []int64{small, large, again}},
		{"a large payload counts as it is stored", 50_000, []int64{small, large, again, zipped}},
		{"none", size - 1, nil},
	} {
		_, rows := fetchPage(t, d.Pool, func(p *eventsdb.FetchPageParams) { p.RowBytes = c.rowBytes })
		equal(t, c.name+": rows", pageIDs(rows), []int64{small, large, again, zipped})
		var with []int64
		for _, r := range rows {
			if r.Payload != nil {
				with = append(with, r.ID)
			}
		}
		equal(t, c.name, with, c.with)
		with = nil
		for _, r := range must(eventsdb.New(d.Pool).FetchNew(t.Context(), eventsdb.FetchNewParams{RowBytes: c.rowBytes, PageSize: 1000}))(t) {
			if r.Payload != nil {
				with = append(with, r.ID)
			}
		}
		equal(t, c.name+", FetchNew", with, c.with)
	}
}

func TestFetchByIDBytes(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	var ids []int64
	for range 5 {
		ids = append(ids, addPayload(t, d.Pool, 1, isPending, `{"data": "0123456789"}`))
	}
	size := value[int64](t, d.Pool, "SELECT max(pg_column_size(payload)) FROM events.outbox")
	for _, c := range []struct {
		name     string
		maxBytes int64
		payloads int
	}{
		{"one event always fits", 1, 1},
		{"the last may go over", size + 1, 2},
		{"what fits exactly is the last", 2 * size, 2},
		{"all", 4*size + 1, 5},
	} {
		rows := must(eventsdb.New(d.Pool).FetchByID(t.Context(), eventsdb.FetchByIDParams{Ids: ids, MaxBytes: c.maxBytes}))(t)
		if len(rows) != len(ids) {
			t.Fatalf("%s: %d rows, want %d", c.name, len(rows), len(ids))
		}
		for i, r := range rows {
			if (r.Payload != nil) != (i < c.payloads) {
				t.Errorf("%s: event %d: payload %q; want %d with one", c.name, i, r.Payload, c.payloads)
			}
		}
	}
}

// TestStrangeTimes: rows that a worker cannot handle must not fail those that were fetched with them.
func TestStrangeTimes(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	queries := eventsdb.New(d.Pool)
	times := []string{"infinity", "-infinity", "4713-01-01 BC", "294276-12-31"}
	for i, at := range times {
		add(t, d.Pool, byte(i), "occurred_at = '"+at+"'")
	}
	ordinary := add(t, d.Pool, 9, isPending)

	_, rows := fetchPage(t, d.Pool, nil)
	if len(rows) != len(times)+1 || rows[0].OccurredAt.InfinityModifier != pgtype.Infinity || rows[1].OccurredAt.InfinityModifier != pgtype.NegativeInfinity {
		t.Errorf("page: %+v", rows)
	}
	swept, err := queries.SweepSlice(t.Context(), eventsdb.SweepSliceParams{UpTo: ordinary, HoldBack: true})
	if err != nil || len(swept) != len(times)+1 {
		t.Fatalf("sweep: %+v, %v", swept, err)
	}
	century := float64(100 * 365.25 * 24 * time.Hour / time.Microsecond)
	for i, want := range []float64{0, 0, century, 0} {
		if swept[i].AgeUs != want {
			t.Errorf("age of an event of %s: %g µs, want %g", times[i], swept[i].AgeUs, want)
		}
	}
	reloaded, err := queries.ReloadLanes(t.Context(), eventsdb.ReloadLanesParams{
		MaxBytes: 1 << 20, PerLane: 10, AggregateTypes: []string{"order"}, AggregateIds: []uuid.UUID{{0}}, FromIds: []int64{1},
	})
	if err != nil || len(reloaded) != 1 || reloaded[0].OccurredAt.InfinityModifier != pgtype.Infinity {
		t.Errorf("reload: %+v, %v", reloaded, err)
	}
}

func TestReloadLanes(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	queries := eventsdb.New(d.Pool)
	one, two, three := uuid.UUID{1}, uuid.UUID{2}, uuid.UUID{3}
	dead := add(t, d.Pool, 1, isDead)
	add(t, d.Pool, 1, isPublished)
	due := add(t, d.Pool, 1, isDue)
	behind := add(t, d.Pool, 1, isPending)
	waiting := add(t, d.Pool, 2, isWaiting)
	held := add(t, d.Pool, 2, isPending)
	err := queries.RecordDeliveries(t.Context(), eventsdb.RecordDeliveriesParams{
		Ids:         []int64{due, due, due, behind},
		Subscribers: []string{"mail", "search", "billing", "mail"},
		Dead:        []bool{false, true, false, false},
	})
	if err != nil {
		t.Fatal(err)
	}
	reload := func(t *testing.T, change func(*eventsdb.ReloadLanesParams)) []eventsdb.ReloadLanesRow {
		t.Helper()
		params := eventsdb.ReloadLanesParams{
			HoldBack: true, MaxBytes: 1 << 20, PerLane: 10,
			AggregateTypes: []string{"order", "order", "order", "invoice"},
			AggregateIds:   []uuid.UUID{two, one, three, one},
			FromIds:        []int64{1, 1, 1, 1},
		}
		if change != nil {
			change(&params)
		}
		return must(queries.ReloadLanes(t.Context(), params))(t)
	}
	ids := func(rows []eventsdb.ReloadLanesRow) (ids []int64) {
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		return ids
	}

	t.Run("returns what is unpublished, lane by lane and in id order", func(t *testing.T) {
		rows := reload(t, nil)
		equal(t, "ids", ids(rows), []int64{waiting, held, dead, due, behind})
		var lanes, states []int32
		for _, r := range rows {
			lanes, states = append(lanes, r.Lane), append(states, r.State)
		}
		equal(t, "lanes", lanes, []int32{1, 1, 2, 2, 2})
		equal(t, "states", states, []int32{2, 0, 3, 1, 0})
	})

	t.Run("leaves out the payload of what cannot be handled now", func(t *testing.T) {
		for _, r := range reload(t, nil) {
			if handled := r.State == 0 || r.State == 1; (r.Payload != nil) != handled {
				t.Errorf("event %d in state %d: payload %q", r.ID, r.State, r.Payload)
			}
		}
	})

	t.Run("says who has settled a retry", func(t *testing.T) {
		for _, r := range reload(t, nil) {
			slices.Sort(r.Delivered)
			want := eventsdb.ReloadLanesRow{}
			if r.ID == due {
				want.Delivered, want.Dead = []string{"billing", "mail"}, []string{"search"}
			}
			equal(t, fmt.Sprintf("event %d: delivered", r.ID), r.Delivered, want.Delivered)
			equal(t, fmt.Sprintf("event %d: dead", r.ID), r.Dead, want.Dead)
		}
	})

	t.Run("says whether an event before the first one holds the lane back", func(t *testing.T) {
		for _, c := range []struct {
			name     string
			one, two int64 // from where
			want     []bool
			holdBack bool
		}{
			{"from the start", 1, 1, []bool{false, false, false, false, false}, true},
			{"behind a dead letter", due, waiting, []bool{false, false, false, false}, true},
			{"behind a due and behind a waiting event", behind, held, []bool{true, true}, true},
			{"the same without holding back", behind, held, []bool{false, false}, false},
		} {
			var blocked []bool
			rows := reload(t, func(p *eventsdb.ReloadLanesParams) { p.FromIds, p.HoldBack = []int64{c.two, c.one, 1, 1}, c.holdBack })
			for _, r := range rows {
				blocked = append(blocked, r.Blocked)
			}
			equal(t, c.name, blocked, c.want)
		}
	})

	t.Run("returns so many rows a lane", func(t *testing.T) {
		equal(t, "ids", ids(reload(t, func(p *eventsdb.ReloadLanesParams) { p.PerLane = 2 })), []int64{waiting, held, dead, due})
	})

	t.Run("returns so many bytes a lane, and always one event", func(t *testing.T) {
		var with []int64
		for _, r := range reload(t, func(p *eventsdb.ReloadLanesParams) { p.MaxBytes, p.FromIds = 1, []int64{held, due, 1, 1} }) {
			if r.Payload != nil {
				with = append(with, r.ID)
			}
		}
		equal(t, "with a payload", with, []int64{held, due})
	})
}

func TestFetchDue(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	queries := eventsdb.New(d.Pool)
	start := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	// fetch returns the due rows after a position, and in how many µs the next retry is due.
	fetch := func(t *testing.T, at pgtype.Timestamptz, id, limit int64) (rows []eventsdb.FetchDueRow, next *int64) {
		t.Helper()
		rows = must(queries.FetchDue(t.Context(), eventsdb.FetchDueParams{AfterTime: at, AfterID: id, PageSize: limit}))(t)
		last := len(rows) - 1
		if last < 0 || rows[last].ID != 0 || rows[last].NextRetryAt.Valid {
			t.Fatalf("the last row is not the timer's: %+v", rows)
		}
		return rows[:last], rows[last].NextInUs
	}

	if rows, next := fetch(t, start, 0, 10); len(rows) > 0 || next != nil {
		t.Errorf("an empty table: %+v, next %v", rows, next)
	}
	add(t, d.Pool, 1, isPending)
	add(t, d.Pool, 1, isDead)
	add(t, d.Pool, 1, isPublished+", "+isDue)
	if rows, next := fetch(t, start, 0, 10); len(rows) > 0 || next != nil {
		t.Errorf("nothing in retry: %+v, next %v", rows, next)
	}

	var want []int64
	later := add(t, d.Pool, 2, "next_retry_at = '2026-01-02'")
	for range 7 {
		want = append(want, add(t, d.Pool, 2, "next_retry_at = '2026-01-01'"))
	}
	first := add(t, d.Pool, 3, "next_retry_at = '-infinity'")
	want = append([]int64{first}, append(want, later)...)

	t.Run("pages through equal times without a gap or a repetition", func(t *testing.T) {
		for _, limit := range []int64{1, 2, 3, 100} {
			var got []int64
			at, id := start, int64(0)
			for {
				rows, _ := fetch(t, at, id, limit)
				for _, r := range rows {
					got = append(got, r.ID)
					at, id = r.NextRetryAt, r.ID
				}
				if int64(len(rows)) < limit {
					break
				}
			}
			equal(t, fmt.Sprintf("pages of %d", limit), got, want)
		}
	})

	t.Run("says when the next one is due, however many are", func(t *testing.T) {
		add(t, d.Pool, 4, "next_retry_at = now() + interval '9999 years'")
		_, next := fetch(t, start, 0, 1)
		if year := int64(365.25 * 24 * time.Hour / time.Microsecond); next == nil || *next != year {
			t.Errorf("far in the future: %v µs, want a year", next)
		}
		add(t, d.Pool, 4, "next_retry_at = now() + interval '1 hour'")
		_, next = fetch(t, start, 0, 1)
		if hour := time.Hour.Microseconds(); next == nil || *next > hour || *next < hour-patience.Microseconds() {
			t.Errorf("in an hour: %v µs", next)
		}
	})
}

// patience is how long a test may take to come from one statement to the next.
const patience = time.Minute

func TestSweepSlice(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	pending := add(t, d.Pool, 1, "occurred_at = now() - interval '1 hour'")
	due := add(t, d.Pool, 2, isDue)
	behindDue := add(t, d.Pool, 2, isPending)
	waiting := add(t, d.Pool, 3, isWaiting)
	behindWaiting := add(t, d.Pool, 3, isPending)
	add(t, d.Pool, 4, isDead)
	behindDead := add(t, d.Pool, 4, isPending)
	add(t, d.Pool, 5, isPublished)
	sweep := func(after, upTo int64, holdBack bool) (ids []int64) {
		t.Helper()
		rows := must(eventsdb.New(d.Pool).SweepSlice(t.Context(), eventsdb.SweepSliceParams{AfterID: after, UpTo: upTo, HoldBack: holdBack}))(t)
		for _, r := range rows {
			ids = append(ids, r.ID)
			if hour := float64(time.Hour.Microseconds()); r.ID == pending && (r.AgeUs < hour || r.AgeUs > hour+float64(patience.Microseconds())) {
				t.Errorf("age %g µs, want an hour", r.AgeUs)
			}
			if r.NextRetryAt.Valid != (r.ID == due) {
				t.Errorf("event %d: next_retry_at %v", r.ID, r.NextRetryAt)
			}
		}
		return ids
	}
	add(t, d.Pool, 6, "id = -1") // chosen by hand
	equal(t, "what could be handled now", sweep(0, math.MaxInt64, true), []int64{-1, pending, due, behindDead})
	equal(t, "what could be handled now, without holding back", sweep(0, math.MaxInt64, false), []int64{-1, pending, due, behindDue, behindWaiting, behindDead})
	equal(t, "up to nothing", sweep(0, 0, true), []int64{-1})
	equal(t, "after the first, up to the second", sweep(pending, due, true), []int64{due})
	equal(t, "of a range without any", sweep(due, waiting, true), nil)
}

func TestSweepReach(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	add(t, d.Pool, 1, "id = -1") // chosen by hand: it belongs to the first slice, which begins at 0
	add(t, d.Pool, 1, "id = -2")
	first := add(t, d.Pool, 1, isPending)
	add(t, d.Pool, 1, isPublished)
	second, third := add(t, d.Pool, 1, isDead), add(t, d.Pool, 1, isDue)
	for _, c := range []struct{ after, upTo, most, want int64 }{
		{0, 1000, 1, first},
		{0, 1000, 2, second},
		{0, 1000, 3, third},
		{0, 1000, 4, 1000},
		{0, second, 3, second},
		{first, 1000, 2, third},
		{third, 1000, 1, 1000},
		{0, 0, 1, 0},
	} {
		p := eventsdb.SweepReachParams{AfterID: c.after, UpTo: c.upTo, Most: c.most}
		if got := must(eventsdb.New(d.Pool).SweepReach(t.Context(), p))(t); got != c.want {
			t.Errorf("%+v: %d, want %d", p, got, c.want)
		}
	}
}

func TestMarkPublishedBatch(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	queries := eventsdb.New(d.Pool)
	published := add(t, d.Pool, 1, "published_at = '2026-01-01'")
	pending, failed, other := add(t, d.Pool, 1, isPending), add(t, d.Pool, 2, isWaiting), add(t, d.Pool, 3, isPending)
	for range 2 { // an unknown commit is settled twice
		if err := queries.MarkPublishedBatch(t.Context(), eventsdb.MarkPublishedBatchParams{Ids: []int64{failed, pending, published, 4711}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := queries.MarkPublishedBatch(t.Context(), eventsdb.MarkPublishedBatchParams{Durable: true}); err != nil {
		t.Errorf("nothing: %v", err)
	}
	for id, want := range map[int64]string{
		published: "published_at = '2026-01-01'", pending: "published_at > now() - interval '1 minute'",
		failed: "published_at IS NOT NULL AND retry_count = 1", other: "published_at IS NULL",
	} {
		if !value[bool](t, d.Pool, "SELECT "+want+" FROM events.outbox WHERE id = $1", id) {
			t.Errorf("event %d: not %s", id, want)
		}
	}
}

// TestMarkPublishedBatchAndTheDisk has commits that wait for the disk wait for a standby too, which is not there.
func TestMarkPublishedBatchAndTheDisk(t *testing.T) {
	t.Parallel()
	d := pgtest.DatabaseOn(t, pgtest.Cluster(t))
	session := d.Connect(t)
	id := add(t, d.Pool, 1, isPending)
	exec(t, d.Pool, "ALTER SYSTEM SET synchronous_standby_names = 'ghost'", "SELECT pg_reload_conf()")
	eventually(t, "the setting is known", func() bool { return value[string](t, session, "SHOW synchronous_standby_names") == "ghost" })
	mark := func(durable bool) error {
		return eventsdb.New(session).MarkPublishedBatch(context.Background(), eventsdb.MarkPublishedBatchParams{Ids: []int64{id}, Durable: durable})
	}
	if err := mark(false); err != nil { // else it would wait for ever
		t.Fatal(err)
	}
	if got := value[string](t, session, "SHOW synchronous_commit"); got != "on" {
		t.Errorf("after that synchronous_commit is %s in the session", got)
	}
	marked := make(chan error, 1)
	exec(t, session, "SET synchronous_commit = off", "INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', gen_random_uuid(), 'Placed', '{}')", "SET synchronous_commit = on")
	id = value[int64](t, session, "SELECT max(id) FROM events.outbox")
	pid := session.PgConn().PID()
	go func() { marked <- mark(true) }()
	const waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')"
	eventually(t, "the commit waits", func() bool { return value[bool](t, d.Pool, waits, int32(pid)) })
	exec(t, d.Pool, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	if err := <-marked; err != nil {
		t.Error(err)
	}
}

func TestMarkRetryBatch(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	queries := eventsdb.New(d.Pool)
	row := func(t *testing.T, id int64) string {
		t.Helper()
		return value[string](t, d.Pool, "SELECT to_jsonb(o)::text FROM events.outbox o WHERE id = $1", id)
	}
	mark := func(t *testing.T, id int64, count int32, delay time.Duration) []eventsdb.MarkRetryBatchRow {
		t.Helper()
		return must(queries.MarkRetryBatch(t.Context(), eventsdb.MarkRetryBatchParams{
			Ids: []int64{id}, RetryCounts: []int32{count}, LastErrors: []string{"failed"}, DelaysUs: []int64{delay.Microseconds()},
		}))(t)
	}

	t.Run("counts, keeps the error, and sets the time by the database's clock", func(t *testing.T) {
		a, b := add(t, d.Pool, 1, isPending), add(t, d.Pool, 2, isDue)
		rows := must(queries.MarkRetryBatch(t.Context(), eventsdb.MarkRetryBatchParams{
			Ids: []int64{b, a}, RetryCounts: []int32{1, 0}, LastErrors: []string{"b failed", "a failed"},
			DelaysUs: []int64{time.Hour.Microseconds(), time.Minute.Microseconds()},
		}))(t)
		if len(rows) != 2 {
			t.Fatalf("%d rows, want 2", len(rows))
		}
		for _, r := range rows {
			want := `retry_count = 1 AND last_error = 'a failed' AND next_retry_at BETWEEN now() AND now() + interval '1 minute'`
			if r.ID == b {
				want = `retry_count = 2 AND last_error = 'b failed' AND next_retry_at BETWEEN now() + interval '59 minutes' AND now() + interval '1 hour'`
			}
			if !value[bool](t, d.Pool, "SELECT "+want+" AND published_at IS NULL AND next_retry_at = $2 FROM events.outbox WHERE id = $1", r.ID, r.NextRetryAt) {
				t.Errorf("event %d is %s, not %s", r.ID, row(t, r.ID), want)
			}
		}
	})

	for name, c := range map[string]struct {
		set   string
		count int32
	}{
		"a published event":                            {isPublished, 0},
		"an event that somebody else has marked since": {isDue, 0},
		"an event whose count is lower than fetched":   {isDue, 2},
	} {
		t.Run("leaves alone "+name, func(t *testing.T) {
			id := add(t, d.Pool, 1, c.set)
			before := row(t, id)
			if rows := mark(t, id, c.count, time.Hour); len(rows) != 0 || row(t, id) != before {
				t.Errorf("returned %+v, the row is %s and was %s", rows, row(t, id), before)
			}
		})
	}

	t.Run("changes nothing the second time", func(t *testing.T) {
		id := add(t, d.Pool, 1, isPending)
		if rows := mark(t, id, 0, time.Hour); len(rows) != 1 {
			t.Fatalf("%d rows, want 1", len(rows))
		}
		before := row(t, id)
		if rows := mark(t, id, 0, time.Hour); len(rows) != 0 || row(t, id) != before {
			t.Errorf("returned %+v, the row is %s and was %s", rows, row(t, id), before)
		}
	})

	t.Run("stays at the end of the count", func(t *testing.T) {
		id := add(t, d.Pool, 1, fmt.Sprintf("retry_count = %d, next_retry_at = now()", math.MaxInt32-1))
		for _, count := range []int32{math.MaxInt32 - 1, math.MaxInt32} {
			if rows := mark(t, id, count, time.Hour); len(rows) != 1 {
				t.Errorf("from %d: %d rows, want 1", count, len(rows))
			}
			if got := value[int32](t, d.Pool, "SELECT retry_count FROM events.outbox WHERE id = $1", id); got != math.MaxInt32 {
				t.Errorf("from %d to %d", count, got)
			}
		}
	})
}

func TestMarkDeadBatch(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	queries := eventsdb.New(d.Pool)
	pending, failed, redriven := add(t, d.Pool, 1, isPending), add(t, d.Pool, 2, isDue), add(t, d.Pool, 3, "retry_count = 12, next_retry_at = now()")
	last, published, marked := add(t, d.Pool, 4, fmt.Sprintf("retry_count = %d", math.MaxInt32)), add(t, d.Pool, 5, isPublished), add(t, d.Pool, 6, isWaiting)
	for range 2 {
		err := queries.MarkDeadBatch(t.Context(), eventsdb.MarkDeadBatchParams{
			Ids:         []int64{pending, failed, redriven, last, published, marked},
			RetryCounts: []int32{0, 1, 12, math.MaxInt32, 0, 0}, // marked has 1
			LastErrors:  slices.Repeat([]string{"failed for good"}, 6),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const dead = " AND next_retry_at = 'infinity' AND last_error = 'failed for good' AND published_at IS NULL"
	for id, want := range map[int64]string{
		pending: "retry_count = 10" + dead, failed: "retry_count = 10" + dead, redriven: "retry_count = 13" + dead,
		last:      fmt.Sprintf("retry_count = %d", math.MaxInt32) + dead,
		published: "published_at IS NOT NULL AND next_retry_at IS NULL AND retry_count = 0",
		marked:    "retry_count = 1 AND next_retry_at < 'infinity'",
	} {
		if !value[bool](t, d.Pool, "SELECT "+want+" FROM events.outbox WHERE id = $1", id) {
			t.Errorf("event %d: not %s", id, want)
		}
	}
}

func TestRecordDeliveries(t *testing.T) {
	t.Parallel()
	d := pgtest.Database(t)
	queries := eventsdb.New(d.Pool)
	kept, discarded := add(t, d.Pool, 1, isPending), add(t, d.Pool, 1, isPending)
	exec(t, d.Pool, fmt.Sprintf("DELETE FROM events.outbox WHERE id = %d", discarded))
	record := func(params eventsdb.RecordDeliveriesParams) {
		t.Helper()
		if err := queries.RecordDeliveries(t.Context(), params); err != nil {
			t.Fatal(err)
		}
	}
	list := func() string {
		t.Helper()
		return value[string](t, d.Pool, `SELECT COALESCE(string_agg(concat_ws(' ', outbox_id - $1, subscriber, dead), ', ' ORDER BY outbox_id, subscriber), '')
			FROM events.outbox_delivery`, kept)
	}
	record(eventsdb.RecordDeliveriesParams{
		Ids: []int64{kept, discarded, kept}, Subscribers: []string{"mail", "mail", "search"}, Dead: []bool{false, false, true},
	})
	if got, want := list(), "0 mail f, 0 search t"; got != want {
		t.Errorf("%q, want %q: an event that is gone is skipped", got, want)
	}
	record(eventsdb.RecordDeliveriesParams{Ids: []int64{kept, kept}, Subscribers: []string{"mail", "search"}, Dead: []bool{false, false}})
	if got, want := list(), "0 mail f, 0 search f"; got != want {
		t.Errorf("%q, want %q: the last record counts", got, want)
	}
	exec(t, d.Pool, fmt.Sprintf("DELETE FROM events.outbox WHERE id = %d", kept))
	if got := list(); got != "" {
		t.Errorf("%q is left of an event that is gone", got)
	}
}

// TestReadSequenceSeesContention holds up the commits of publishers that notify, by a synchronous standby that does not
// exist, for which the first waits with the lock that the others want.
func TestReadSequenceSeesContention(t *testing.T) {
	t.Parallel()
	server := pgtest.Cluster(t)
	d, elsewhere := pgtest.DatabaseOn(t, server), pgtest.DatabaseOn(t, server)
	const insert = "INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', gen_random_uuid(), 'Placed', '{}')"
	// notifying returns how many transactions wait, and how many of them are known to have drawn an id.
	notifying := func() (waiting, ours int) {
		t.Helper()
		found := must(eventsdb.New(d.Pool).ReadSequence(t.Context(), sequence))(t)[1:]
		for _, f := range found {
			if f.Notifying {
				waiting++
				f.Notifying = false
				if slices.Contains(found, f) {
					ours++
				}
			}
		}
		return waiting, ours
	}
	exec(t, d.Pool, "SELECT events.outbox_set_notify('always')")
	exec(t, elsewhere.Pool, "SELECT events.outbox_set_notify('always')")
	exec(t, d.Pool, "ALTER SYSTEM SET synchronous_standby_names = 'ghost'", "SELECT pg_reload_conf()")
	var publishers sync.WaitGroup
	for _, db := range []*pgtest.DB{d, d, d, elsewhere} {
		conn := db.Connect(t)
		publishers.Go(func() {
			if _, err := conn.Exec(context.Background(), insert); err != nil {
				t.Error(err)
			}
		})
	}
	var ours int
	eventually(t, "three publishers wait", func() (all bool) {
		var waiting int
		waiting, ours = notifying()
		return waiting >= 3
	})
	if ours != 2 && ours != 3 { // the one that does not wait may be any of the four
		t.Errorf("%d of 3 publishers that wait are known as ours", ours)
	}
	exec(t, d.Pool, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	publishers.Wait()
	if waiting, _ := notifying(); waiting != 0 {
		t.Errorf("%d wait after it is over", waiting)
	}
}

func TestReadSequence(t *testing.T) {
	t.Parallel()
	server := pgtest.Cluster(t, func(o *temppg.Options) { o.Settings = map[string]string{"max_prepared_transactions": "5"} })
	d := pgtest.DatabaseOn(t, server)
	exec(t, d.Pool, "ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify", "CREATE TABLE other (id BIGSERIAL)")
	holders := func() int {
		t.Helper()
		found := must(eventsdb.New(d.Pool).ReadSequence(t.Context(), sequence))(t)
		var last int64
		if err := d.Pool.QueryRow(t.Context(), "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events.outbox_id_seq").Scan(&last); err != nil {
			t.Fatal(err)
		}
		if first := found[0]; first.Holder != "" || first.LastValue != last {
			t.Errorf("the first row is %+v, the last value is %d", first, last)
		}
		return len(found) - 1
	}
	if n := holders(); n != 0 {
		t.Errorf("%d holders of an unused sequence", n)
	}
	const insert = "INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', gen_random_uuid(), 'Placed', '{}')"
	for _, c := range []struct {
		name       string
		statements []string
		want       int
		end        string
	}{
		{"an open publisher", []string{insert, insert}, 1, "COMMIT"},
		{"a publisher that took its event back to a savepoint", []string{"SAVEPOINT s", insert, "ROLLBACK TO s"}, 1, "COMMIT"},
		{"whoever has drawn an id and not used it", []string{"SELECT nextval('events.outbox_id_seq')"}, 1, "ROLLBACK"},
		{"a prepared transaction", []string{insert, "PREPARE TRANSACTION 'p'"}, 1, "COMMIT PREPARED 'p'"},
		{"nobody who draws from another sequence", []string{"INSERT INTO other DEFAULT VALUES"}, 0, "COMMIT"},
		{"nobody who reads or marks", []string{"SELECT last_value FROM events.outbox_id_seq", "UPDATE events.outbox SET published_at = now()"}, 0, "COMMIT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			session := d.Connect(t)
			exec(t, session, append([]string{"BEGIN"}, c.statements...)...)
			if n := holders(); n != c.want {
				t.Errorf("%d holders, want %d", n, c.want)
			}
			exec(t, session, c.end)
			if n := holders(); n != 0 {
				t.Errorf("%d holders after %s, want none", n, c.end)
			}
		})
	}
}

func TestSpecificationQueries(t *testing.T) {
	t.Parallel()

	t.Run("FetchUnpublishedBatch returns what is pending or due, in id order", func(t *testing.T) {
		t.Parallel()
		d := pgtest.Database(t)
		due := add(t, d.Pool, 1, isDue)
		add(t, d.Pool, 1, isWaiting)
		add(t, d.Pool, 1, isDead)
		add(t, d.Pool, 1, isPublished)
		pending := add(t, d.Pool, 1, isPending)
		next := add(t, d.Pool, 1, isPending)
		for size, want := range map[int64][]int64{50: {due, pending, next}, 2: {due, pending}} {
			var ids []int64
			for _, r := range must(eventsdb.New(d.Pool).FetchUnpublishedBatch(t.Context(), size))(t) {
				ids = append(ids, r.ID)
			}
			equal(t, fmt.Sprintf("batch of %d", size), ids, want)
		}
	})

	t.Run("MarkPublished and MarkRetry leave a published event alone", func(t *testing.T) {
		t.Parallel()
		d := pgtest.Database(t)
		queries := eventsdb.New(d.Pool)
		id := add(t, d.Pool, 1, isPending)
		retry := func() error {
			return queries.MarkRetry(t.Context(), eventsdb.MarkRetryParams{ID: id, LastError: "failed", DelayUs: time.Hour.Microseconds()})
		}
		if err := retry(); err != nil {
			t.Fatal(err)
		}
		if !value[bool](t, d.Pool, "SELECT retry_count = 1 AND last_error = 'failed' AND next_retry_at > now() + interval '59 minutes' FROM events.outbox") {
			t.Error("MarkRetry did not mark")
		}
		if err := queries.MarkPublished(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		before := value[string](t, d.Pool, "SELECT to_jsonb(o)::text FROM events.outbox o WHERE published_at IS NOT NULL")
		if err := retry(); err != nil {
			t.Fatal(err)
		}
		if err := queries.MarkPublished(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if after := value[string](t, d.Pool, "SELECT to_jsonb(o)::text FROM events.outbox o"); after != before {
			t.Errorf("the row was %s and is %s", before, after)
		}
	})

	t.Run("ArchiveOldOutboxEvents deletes what was published long ago, and nothing else", func(t *testing.T) {
		t.Parallel()
		d := pgtest.Database(t)
		const old = ", occurred_at = now() - interval '1 year'"
		add(t, d.Pool, 1, "published_at = now() - interval '31 days'")
		add(t, d.Pool, 1, "published_at = now() - interval '31 days', retry_count = 10"+old)
		left := []int64{
			add(t, d.Pool, 1, "published_at = now() - interval '29 days'"+old),
			add(t, d.Pool, 1, isDead+old), add(t, d.Pool, 1, isWaiting+old), add(t, d.Pool, 1, "retry_count = 0"+old),
		}
		retention := 30 * 24 * time.Hour
		if n := must(eventsdb.New(d.Pool).ArchiveOldOutboxEvents(t.Context(), retention.Microseconds()))(t); n != 2 {
			t.Errorf("deleted %d, want 2", n)
		}
		equal(t, "left", value[[]int64](t, d.Pool, "SELECT array_agg(id ORDER BY id) FROM events.outbox"), left)
	})
}
