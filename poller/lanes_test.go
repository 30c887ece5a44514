package poller

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// lanesBench is lanes with short ways to say what happens. Events are named by their ids; those of one hundred
// belong to one aggregate.
type lanesBench struct {
	*lanes
	t     *testing.T
	taken map[int64]*row
}

func newLanesBench(t *testing.T, adjust ...func(*limits)) *lanesBench {
	l := limits{concurrency: 4, laneCap: 3, rows: 100, bytes: math.MaxInt, holdBack: true}
	for _, a := range adjust {
		a(&l)
	}
	return &lanesBench{lanes: newLanes(l), t: t, taken: map[int64]*row{}}
}

func testRow(id int64, s state) *row {
	return &row{id: id, aggregate: tableKey(int(id / 100)), payload: []byte("1"), state: s}
}

func (b *lanesBench) offerAll(ids ...int64) {
	for _, id := range ids {
		b.offer(testRow(id, pending))
	}
}

// starts starts everything that can be started and checks that it is this.
func (b *lanesBench) starts(want ...int64) {
	b.t.Helper()
	var got []int64
	for r := b.next(); r != nil; r = b.next() {
		b.taken[r.id] = r
		got = append(got, r.id)
	}
	if !slices.Equal(got, want) {
		b.t.Fatalf("started %v, want %v", got, want)
	}
}

func (b *lanesBench) end(id int64, kind dispatch.Kind) {
	b.done(b.taken[id], kind == dispatch.Retry)
}

func (b *lanesBench) settleAs(id int64, kind dispatch.Kind, applied bool) {
	b.settled([]settlement{{outcome: outcome{row: b.taken[id], result: &dispatch.Outcome{Kind: kind}}, applied: applied}})
}

// wantsReload checks that the lanes want to be reloaded from these ids, and has the requests.
func (b *lanesBench) wantsReload(want ...int64) (requests []reload) {
	b.t.Helper()
	if n := b.waitingReloads(); n != len(want) {
		b.t.Fatalf("%d reloads wait, want %v", n, want)
	}
	requests = b.reloadable(math.MaxInt)
	slices.SortFunc(requests, func(a, b reload) int { return int(a.from - b.from) })
	for i, r := range requests {
		if r.from != want[i] || r.key != tableKey(int(r.from/100)) {
			b.t.Fatalf("reloads %+v, want %v", requests, want)
		}
	}
	return requests
}

func (b *lanesBench) isEmpty() {
	b.t.Helper()
	checkLanes(b.t, b.lanes, nil, nil)
	if inFlight, running := b.counts(); inFlight+running+len(b.byKey)+b.waitingReloads() != 0 {
		b.t.Errorf("left: %+v", b.lanes)
	}
}

func TestLanes(t *testing.T) {
	t.Parallel()
	run := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
	run("events of an aggregate start one at a time, by id", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101, 102)
		for id := int64(100); id <= 102; id++ {
			b.starts(id)
			b.end(id, dispatch.Published)
			b.settleAs(id, dispatch.Published, true)
		}
		b.isEmpty()
	})
	run("aggregates run side by side up to the concurrency", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 200, 300, 400, 500, 600)
		if n := b.startable(); n != 4 {
			t.Errorf("%d can be started", n)
		}
		b.starts(100, 200, 300, 400)
		b.end(200, dispatch.Published)
		b.starts(500)
	})
	run("ready lanes take turns", func(t *testing.T) {
		b := newLanesBench(t, func(l *limits) { l.concurrency = 1 })
		b.offerAll(100, 101, 102, 200, 201)
		var order []int64
		for range 5 {
			r := b.next()
			order = append(order, r.id)
			b.done(r, false)
		}
		if !slices.Equal(order, []int64{100, 200, 101, 201, 102}) {
			t.Errorf("order %v", order)
		}
	})
	run("a late commit goes before what was drawn after it", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 103)
		b.starts(100)
		b.offerAll(102, 101)
		b.end(100, dispatch.Published)
		b.starts(101)
	})
	run("what is in flight is offered in vain", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101)
		b.starts(100)
		b.offerAll(100, 101)
		b.end(100, dispatch.Published)
		b.offerAll(100)
		b.starts(101)
		b.end(101, dispatch.Published)
		b.starts()
		b.settleAs(100, dispatch.Published, true)
		b.settleAs(101, dispatch.Published, true)
		b.isEmpty()
	})
	run("what a lane cannot hold is reloaded from the first on when it has run empty", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101, 102, 103, 104)
		b.wantsReload()
		for id := int64(100); id <= 101; id++ {
			b.starts(id)
			b.end(id, dispatch.Published)
		}
		b.offerAll(105) // there is room again, and it would overtake
		b.wantsReload()
		b.starts(102)
		b.wantsReload(103)
	})
	run("a late commit takes the place of the last in a full lane", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(101, 102, 103, 100)
		b.starts(100)
		b.end(100, dispatch.Published)
		b.starts(101)
		b.end(101, dispatch.Published)
		b.starts(102)
		b.wantsReload(103)
	})
	run("a handler that ends says whether there is something to reload", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101, 102, 103)
		for range 2 {
			if r := b.next(); b.done(r, false) {
				t.Errorf("%d is not the last of the queue", r.id)
			}
		}
		if !b.done(b.next(), false) {
			t.Error("the last of the queue says nothing of the rest")
		}
	})
	run("while a reload is under way new events are passed over only if need be", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101, 102, 103)
		for range 3 {
			b.done(b.next(), false)
		}
		request := b.wantsReload(103)[0]
		b.reloaded(request, []*row{testRow(103, pending)}, 4, false)
		b.offerAll(103, 104)
		b.starts(103)
		b.end(103, dispatch.Published)
		b.starts(104)
	})

	run("a failed event holds its lane until its failure is committed, and then the database does", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101)
		b.starts(100)
		b.end(100, dispatch.Retry)
		b.offerAll(102)
		b.starts()
		b.wantsReload()
		if !b.covers(tableKey(1), 101) || !b.covers(tableKey(1), 107) {
			t.Error("what follows is not covered")
		}
		b.settleAs(100, dispatch.Retry, true)
		b.wantsReload()
		b.isEmpty()
	})
	run("a late commit before a failed event is reloaded", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(105, 106)
		b.starts(105)
		b.end(105, dispatch.Retry)
		b.offerAll(101)
		b.settleAs(105, dispatch.Retry, true)
		b.wantsReload(101)
	})
	run("a failure that somebody else settled is looked at again", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101)
		b.starts(100)
		b.end(100, dispatch.Retry)
		b.settleAs(100, dispatch.Retry, false)
		b.wantsReload(100)
	})
	run("a lane that is held during its reload passes over what comes", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100)
		b.starts(100)
		b.pass(tableKey(1), 101)
		request := b.wantsReload(101)[0]
		b.end(100, dispatch.Retry)
		b.reloaded(request, []*row{testRow(101, pending), testRow(102, pending)}, 4, false)
		b.starts()
		b.wantsReload()
		b.settleAs(100, dispatch.Retry, true)
		b.wantsReload()
		b.isEmpty()
	})
	run("a dead event holds back nothing", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101)
		b.starts(100)
		b.end(100, dispatch.Dead)
		b.starts(101)
	})
	run("an outcome that became a retry when it was written holds back nothing that is in memory", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101)
		b.starts(100)
		b.end(100, dispatch.Published)
		b.settleAs(100, dispatch.Retry, true)
		b.starts(101)
	})
	run("where failures do not hold back", func(t *testing.T) {
		b := newLanesBench(t, func(l *limits) { l.holdBack = false })
		b.offerAll(100, 101, 102)
		b.starts(100)
		b.end(100, dispatch.Retry)
		b.starts(101)
		b.settleAs(100, dispatch.Retry, true)
		b.pass(tableKey(1), 100)
		b.end(101, dispatch.Published)
		request := b.wantsReload(100)[0]
		b.reloaded(request, []*row{testRow(100, due), testRow(103, waiting), testRow(104, pending)}, 4, false)
		b.starts(100)
		b.end(100, dispatch.Published)
		b.starts(102)
		b.end(102, dispatch.Published)
		b.starts(104)
	})

	for _, kind := range []dispatch.Kind{dispatch.Published, dispatch.Dead} {
		run(fmt.Sprintf("a retry that is %s holds its lane until that is committed, and what it blocked is reloaded", kind), func(t *testing.T) {
			b := newLanesBench(t)
			b.pass(tableKey(1), 100)
			b.reloaded(b.wantsReload(100)[0], []*row{testRow(100, due), testRow(101, pending)}, 4, false)
			b.starts(100)
			b.end(100, kind)
			// A fetch between the commit and its settlement sees 102 as free, and 101 had been passed over as blocked.
			b.offerAll(102)
			b.starts()
			if !b.covers(tableKey(1), 101) {
				t.Error("101 would be rescued")
			}
			b.settleAs(100, kind, true)
			b.wantsReload(101)
		})
	}
	run("a retry that fails again leaves the rest to the database", func(t *testing.T) {
		b := newLanesBench(t)
		b.pass(tableKey(1), 100)
		b.reloaded(b.wantsReload(100)[0], []*row{testRow(100, due)}, 4, false)
		b.starts(100)
		b.end(100, dispatch.Retry)
		b.settleAs(100, dispatch.Retry, true)
		b.isEmpty()
	})
	run("an event that is passed and in flight is not reloaded", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100)
		b.pass(tableKey(1), 100)
		b.wantsReload()
	})
	run("a redriven event comes before what is queued", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(102, 103)
		b.starts(102)
		b.pass(tableKey(1), 100)
		b.reloaded(b.wantsReload(100)[0], []*row{testRow(100, due), testRow(103, pending)}, 4, false)
		b.end(102, dispatch.Published)
		b.starts(100)
	})

	run("a reload", func(t *testing.T) {
		for name, tc := range map[string]struct {
			rows    []*row
			limit   int
			blocked bool
			starts  []int64 // one after another
			reload  []int64
		}{
			"of nothing leaves nothing":                    {},
			"is vain behind an event in retry":             {rows: []*row{testRow(100, pending)}, blocked: true},
			"skips dead letters":                           {rows: []*row{testRow(100, dead), testRow(101, pending)}, starts: []int64{101}},
			"ends before a retry that waits":               {rows: []*row{testRow(100, pending), testRow(101, waiting), testRow(102, pending)}, starts: []int64{100}},
			"ends with a retry that is due":                {rows: []*row{testRow(100, pending), testRow(101, due), testRow(102, pending)}, starts: []int64{100, 101}},
			"goes on where a payload is missing":           {rows: []*row{testRow(100, pending), {id: 101, aggregate: tableKey(1)}, testRow(102, pending)}, starts: []int64{100}, reload: []int64{101}},
			"goes on behind a full answer":                 {rows: []*row{testRow(100, pending), testRow(101, pending)}, limit: 2, starts: []int64{100, 101}, reload: []int64{102}},
			"goes on behind a full answer of dead letters": {rows: []*row{testRow(100, dead), testRow(101, dead)}, limit: 2, reload: []int64{102}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newLanesBench(t)
				b.pass(tableKey(1), 100)
				limit := tc.limit
				if limit == 0 {
					limit = 4
				}
				b.reloaded(b.wantsReload(100)[0], tc.rows, limit, tc.blocked)
				for _, id := range tc.starts {
					b.starts(id)
					b.end(id, dispatch.Published)
					b.settleAs(id, dispatch.Published, true)
				}
				b.starts()
				if len(tc.starts) == 2 && tc.rows[1].state == due {
					tc.reload = []int64{102} // what it blocked
				}
				if len(b.wantsReload(tc.reload...)) == 0 {
					b.isEmpty()
				}
			})
		}
	})
	run("no more lanes are reloaded than asked for", func(t *testing.T) {
		b := newLanesBench(t)
		for n := range 5 {
			b.pass(tableKey(n+1), int64(n+1)*100)
		}
		if first, rest := b.reloadable(2), b.reloadable(10); len(first) != 2 || len(rest) != 3 {
			t.Errorf("%d and %d", len(first), len(rest))
		}
	})

	run("an event is covered while it is in flight or left to its lane", func(t *testing.T) {
		b := newLanesBench(t, func(l *limits) { l.laneCap = 1 })
		covered := func(want bool, id int64) {
			t.Helper()
			if got := b.covers(tableKey(int(id/100)), id); got != want {
				t.Errorf("%d: covered: %t", id, got)
			}
		}
		covered(false, 100)
		b.offerAll(100, 102)
		covered(true, 100)
		covered(false, 101)
		covered(true, 102)
		covered(true, 103)
		covered(false, 200)
		b.starts(100)
		covered(true, 100)
		b.end(100, dispatch.Published)
		covered(true, 100)
		b.settleAs(100, dispatch.Published, true)
		covered(false, 100)
	})

	run("while a slot is idle what is queued makes room", func(t *testing.T) {
		b := newLanesBench(t, func(l *limits) { l.laneCap, l.rows = 8, 10 })
		b.offerAll(100, 101, 102, 103, 104, 105, 106, 107)
		b.offerAll(200, 201)
		if rows, _ := b.room(); rows != 0 {
			t.Errorf("room for %d before anything runs", rows)
		}
		b.starts(100, 200)
		rows, _ := b.room()
		if rows < 5 {
			t.Errorf("room for %d", rows)
		}
		checkLanes(t, b.lanes, []*row{b.taken[100], b.taken[200]}, nil)
		b.end(200, dispatch.Published)
		b.starts(201) // the longest gave up its tail, and this is not the longest
		for id := int64(100); ; id++ {
			b.end(id, dispatch.Published)
			if b.waitingReloads() > 0 {
				b.wantsReload(id + 1)
				break
			}
			b.starts(id + 1)
		}
	})
	run("while all slots are busy what is queued stays", func(t *testing.T) {
		b := newLanesBench(t, func(l *limits) { l.laneCap, l.rows, l.concurrency = 8, 8, 1 })
		b.offerAll(100, 101, 102, 103, 104, 105, 106, 107)
		b.starts(100)
		if rows, _ := b.room(); rows != 0 {
			t.Errorf("room for %d", rows)
		}
	})
	run("what waits to be settled does not make room", func(t *testing.T) {
		b := newLanesBench(t, func(l *limits) { l.rows = 2 })
		b.offerAll(100, 200)
		b.starts(100, 200)
		b.end(100, dispatch.Published)
		b.end(200, dispatch.Published)
		if rows, _ := b.room(); rows != 0 {
			t.Errorf("room for %d", rows)
		}
		b.settleAs(100, dispatch.Published, true)
		if rows, _ := b.room(); rows != 1 {
			t.Errorf("room for %d", rows)
		}
	})
	run("bytes count from the offer to the settlement", func(t *testing.T) {
		b := newLanesBench(t, func(l *limits) { l.bytes = 10_000 })
		size := testRow(100, pending).size()
		left := func(want int) {
			t.Helper()
			if _, bytes := b.room(); bytes != want {
				t.Errorf("room for %d bytes, want %d", bytes, want)
			}
		}
		b.offerAll(100, 101)
		left(10_000 - 2*size)
		b.starts(100)
		b.end(100, dispatch.Published)
		left(10_000 - 2*size)
		b.settleAs(100, dispatch.Published, true)
		left(10_000 - size)
	})
	run("it is hungry while fewer lanes are ready than there are slots", func(t *testing.T) {
		b := newLanesBench(t)
		for n := range int64(4) {
			if !b.hungry() {
				t.Errorf("not hungry with %d", n)
			}
			b.offerAll((n + 1) * 100)
		}
		if b.hungry() {
			t.Error("hungry with 4")
		}
	})

	run("when ownership is lost only what handlers have stays", func(t *testing.T) {
		b := newLanesBench(t)
		b.offerAll(100, 101, 200, 201, 300, 301, 400, 401)
		b.pass(tableKey(5), 500)
		b.starts(100, 200, 300, 400)
		b.end(200, dispatch.Retry)
		b.end(300, dispatch.Published)
		b.discard()
		b.starts()
		b.wantsReload()
		checkLanes(t, b.lanes, []*row{b.taken[100], b.taken[400]}, []outcome{{row: b.taken[200]}, {row: b.taken[300]}})

		// Owner again: what is in flight is not taken twice, and what follows keeps its place.
		b.offerAll(100, 101, 200, 201, 300, 301, 400, 401)
		b.starts(301)
		b.end(100, dispatch.Published)
		b.starts(101)
		b.end(400, dispatch.Retry)
		b.settleAs(200, dispatch.Retry, true)
		b.starts()
	})
	run("what shutdown cut off is in flight no more", func(t *testing.T) {
		for _, s := range []state{pending, due} {
			b := newLanesBench(t)
			b.offer(testRow(100, s))
			b.starts(100)
			b.end(100, dispatch.Untouched)
			b.abandon(b.taken[100])
			b.isEmpty()
		}
	})
}

func TestLanesShareSlots(t *testing.T) {
	t.Parallel()
	many := func(b *lanesBench, s state, from, n int64) {
		for i := range n {
			b.offer(testRow((from+i)*100, s))
		}
	}
	t.Run("retries have at most half the slots", func(t *testing.T) {
		t.Parallel()
		for concurrency, want := range map[int]int{1: 1, 2: 1, 3: 1, 8: 4} {
			b := newLanesBench(t, func(l *limits) { l.concurrency = concurrency })
			many(b, due, 1, 20)
			if n := b.startable(); n != want {
				t.Errorf("%d of %d can be started", n, concurrency)
			}
			n := 0
			for b.next() != nil {
				n++
			}
			if n != want {
				t.Errorf("%d of %d run", n, concurrency)
			}
		}
	})
	t.Run("new events can have all", func(t *testing.T) {
		t.Parallel()
		b := newLanesBench(t, func(l *limits) { l.concurrency = 8 })
		many(b, pending, 1, 20)
		for range 8 {
			if b.next() == nil {
				t.Fatal("a slot stays idle")
			}
		}
	})
	t.Run("a retry that comes before the head of a ready lane counts as one", func(t *testing.T) {
		t.Parallel()
		b := newLanesBench(t, func(l *limits) { l.concurrency = 2 })
		b.offerAll(105, 205)
		b.offer(testRow(101, due))
		b.offer(testRow(201, due))
		b.starts(101)
		checkLanes(t, b.lanes, []*row{b.taken[101]}, nil)
	})
	t.Run("an event that comes before the retry of a ready lane does not", func(t *testing.T) {
		t.Parallel()
		b := newLanesBench(t, func(l *limits) { l.concurrency = 2 })
		b.offer(testRow(105, due))
		b.offer(testRow(205, due))
		b.offerAll(101, 201)
		b.starts(101, 201)
	})
}

// TestLanesStarveNobody keeps new events and retries waiting, and ends handlers as a schedule of the test's choice
// has it: among any four picks while both wait there are one of each, if the retries have not their half already.
func TestLanesStarveNobody(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		concurrency := rapid.SampledFrom([]int{1, 2, 3, 4, 8, 16}).Draw(t, "concurrency")
		ls := newLanes(limits{concurrency: concurrency, laneCap: 1, rows: 1000, bytes: math.MaxInt, holdBack: true})
		var running []*row
		id, freshRow, retryRow := int64(0), 0, 0 // picks in a row without the other
		for range 100 {
			for ls.fresh.len() < 2 || ls.retries.len() < 2 {
				for _, s := range []state{pending, due} {
					id += 100
					ls.offer(&row{id: id, aggregate: aggregate{Type: fmt.Sprint(id)}, state: s})
				}
			}
			for range below(3).Draw(t, "ends") {
				if len(running) > 0 {
					i := below(len(running)).Draw(t, "which")
					ls.done(running[i], false)
					running = slices.Delete(running, i, i+1)
				}
			}
			half := ls.retrying == max(1, concurrency/2)
			r := ls.next()
			switch {
			case r == nil && len(running) < concurrency:
				t.Fatalf("%d of %d slots are idle", concurrency-len(running), concurrency)
			case r == nil:
				continue
			case r.state == due:
				freshRow, retryRow = 0, retryRow+1
			case half:
				retryRow = 0
			default:
				freshRow, retryRow = freshRow+1, 0
			}
			running = append(running, r)
			if freshRow > 3 || retryRow > 3 {
				t.Fatalf("%d new events or %d retries in a row", freshRow, retryRow)
			}
		}
	})
}

func TestReadyList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var q readyList
		var model []*lane
		for range 20 {
			for range rapid.IntRange(0, 1000).Draw(t, "push") {
				l := &lane{}
				q.push(l)
				model = append(model, l)
			}
			for range min(len(model), rapid.IntRange(0, 1000).Draw(t, "pop")) {
				if q.pop() != model[0] {
					t.Fatal("not first in, first out")
				}
				model = model[1:]
			}
			if q.len() != len(model) || q.empty() != (len(model) == 0) {
				t.Fatalf("%d lanes, want %d", q.len(), len(model))
			}
			if len(q.lanes) > 2*len(model)+1025 {
				t.Fatalf("%d places for %d lanes", len(q.lanes), len(model))
			}
			for i, l := range q.lanes[:cap(q.lanes)] {
				if (i < q.head || i >= len(q.lanes)) && l != nil {
					t.Fatal("it still refers to a lane that has been taken")
				}
			}
		}
	})
}

// checkLanes compares the books of lanes with what they are about: running and unsettled are the events that
// have been handed out.
func checkLanes(t rapid.TB, ls *lanes, running []*row, unsettled []outcome) {
	t.Helper()
	bytes, inFlight := 0, map[int64]struct{}{}
	fly := func(r *row) {
		if _, twice := inFlight[r.id]; twice {
			t.Fatalf("event %d is in flight twice", r.id)
		}
		inFlight[r.id] = struct{}{}
		bytes += r.size()
	}
	retrying, queued := 0, 0
	for _, r := range running {
		fly(r)
		if l := ls.byKey[r.aggregate]; l == nil || l.current != r {
			t.Fatalf("event %d is running and not its lane's current one: %+v", r.id, l)
		}
		if r.state == due {
			retrying++
		}
	}
	for _, o := range unsettled {
		fly(o.row)
	}
	for key, l := range ls.byKey {
		if l.key != key {
			t.Fatalf("lane %v is filed under %v", l.key, key)
		}
		if len(l.queue) > ls.limits.laneCap {
			t.Fatalf("%d events queue in a lane of %d", len(l.queue), ls.limits.laneCap)
		}
		for i, r := range l.queue {
			fly(r)
			if i > 0 && l.queue[i-1].id >= r.id {
				t.Fatalf("event %d queues behind %d", r.id, l.queue[i-1].id)
			}
		}
		if l.held != nil && len(l.queue) > 0 {
			t.Fatalf("%d events queue behind the failed event %d", len(l.queue), l.held.id)
		}
		queued += len(l.queue)
		_, reloads := ls.reloads[l]
		listed := slices.Contains(ls.fresh.lanes[ls.fresh.head:], l) || slices.Contains(ls.retries.lanes[ls.retries.head:], l)
		free := l.current == nil && l.held == nil
		switch {
		case l.ready != listed, l.ready != (free && len(l.queue) > 0):
			t.Fatalf("a lane's place on the ready lists is wrong: %+v", l)
		case l.reload != reloads, l.more.there && len(l.queue) == 0 && l.held == nil && !reloads, !l.more.there && reloads:
			t.Fatalf("a lane's request to be reloaded is wrong: %+v", l)
		case len(l.queue) == 0 && !l.more.there && free:
			t.Fatalf("a lane without anything in it was kept: %+v", l)
		}
	}
	for l := range ls.reloads {
		if ls.byKey[l.key] != l {
			t.Fatalf("a lane that is gone asks to be reloaded: %+v", l)
		}
	}
	switch {
	case !maps.Equal(ls.inFlight, inFlight):
		t.Fatalf("in flight are %v by the lanes, %v by the model", ls.inFlight, inFlight)
	case ls.queued != queued:
		t.Fatalf("%d events queue by the lanes, %d by the model", ls.queued, queued)
	case ls.bytes != bytes:
		t.Fatalf("%d bytes in flight by the lanes, %d by the model", ls.bytes, bytes)
	case ls.running != len(running) || ls.running > ls.limits.concurrency:
		t.Fatalf("%d running by the lanes, %d by the model, %d allowed", ls.running, len(running), ls.limits.concurrency)
	case ls.retrying != retrying || ls.retrying > max(1, ls.limits.concurrency/2):
		t.Fatalf("%d retries running by the lanes, %d by the model, of %d slots", ls.retrying, retrying, ls.limits.concurrency)
	}
}
