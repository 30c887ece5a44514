package poller

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/dispatch"
)

// TestLoopNeitherLosesNorReorders drives the fetch loop's steps against a database in memory. Publishers,
// handlers and the settler act between any two steps and, since a statement's answer can be old
// when it is taken in, also before and after each statement.
func TestLoopNeitherLosesNorReorders(t *testing.T) {
	t.Parallel()
	for _, ordering := range []Ordering{PerAggregate, None} {
		t.Run(map[Ordering]string{PerAggregate: "PerAggregate", None: "None"}[ordering], func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t, ordering)
				for range 150 {
					w.step()
				}
				w.finish()
			})
		})
	}
}

// TestLoopSurvivesForeignIds adds what the watermark cannot know: ids that did not come from the sequence, and a
// sequence that is set back. Order cannot be promised then; that nothing is lost and nothing is handled twice can.
func TestLoopSurvivesForeignIds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, PerAggregate)
		w.foreign = true
		for range 150 {
			w.step()
		}
		w.finish()
	})
}

// interrupted is a table of which a statement can have something happen before it.
type interrupted struct {
	*table
	beforeFetchByID func()
}

func (i *interrupted) fetchByID(ctx context.Context, ids []int64, maxBytes int) ([]*row, error) {
	if i.beforeFetchByID != nil {
		i.beforeFetchByID()
	}
	return i.table.fetchByID(ctx, ids, maxBytes)
}

func TestFetchKeepsOrderAcrossLateCommits(t *testing.T) {
	t.Parallel()
	// Event 2 of an aggregate is committed late: 3, of another aggregate, has been fetched. It comes into the same
	// fetch as 4, of its own. Event 1 is an old dead letter of the same aggregate.
	prepare := func(t *testing.T) (*interrupted, *owner) {
		db := &interrupted{table: &table{holdBack: true, now: 1}}
		o := newOwner(t, db, tens)
		ours, other := db.begin(tableKey(1)), db.begin(tableKey(2))
		db.draw(ours, 1)
		db.commit(ours)
		db.record(1).retryAt = deadLetter
		late := db.begin(tableKey(1))
		db.draw(late, 1)
		db.draw(other, 1)
		db.commit(other)
		fetchOnce(t, o)
		if r := o.lanes.next(); r == nil || r.id != 3 {
			t.Fatalf("started %+v, want event 3", r)
		}
		db.commit(late)
		ours = db.begin(tableKey(1))
		db.draw(ours, 1)
		db.commit(ours)
		return db, o
	}
	t.Run("the late one starts first", func(t *testing.T) {
		t.Parallel()
		_, o := prepare(t)
		fetchOnce(t, o)
		for _, id := range []int64{2, 4} {
			r := o.lanes.next()
			if r == nil || r.id != id {
				t.Fatalf("started %+v, want event %d", r, id)
			}
			o.lanes.done(r, false)
		}
	})
	t.Run("if it has been blocked since, the page that it came with is not used", func(t *testing.T) {
		t.Parallel()
		db, o := prepare(t)
		db.beforeFetchByID = func() { db.record(1).retryAt = db.now } // redriven
		fetchOnce(t, o)
		if r := o.lanes.next(); r != nil {
			t.Fatalf("started %d before 2", r.id)
		}
		if !o.behind {
			t.Error("it does not fetch the page again at once")
		}
	})
	t.Run("if it was published as a retry, the page that it came with is not used", func(t *testing.T) {
		t.Parallel()
		db, o := prepare(t)
		db.record(2).retryAt = db.now + 1
		o.retries.some = false // so that nobody asked what is blocked
		fetchOnce(t, o)
		if r := o.lanes.next(); r != nil {
			t.Fatalf("started %d before 2", r.id)
		}
		if !o.behind {
			t.Error("it does not fetch the page again at once")
		}
	})
}

func TestRescueReadsNothingElse(t *testing.T) {
	t.Parallel()
	db := &table{holdBack: true, now: 1}
	o := newOwner(t, db, tens)
	var pooled []*transaction // their ids were drawn long before they insert: no lock on the sequence speaks for them
	for n := range 25 {
		pooled = append(pooled, &transaction{key: tableKey(1 + n)})
		db.lastValue++
		db.insert(pooled[n], db.lastValue, 1)
	}
	other := db.begin(tableKey(100))
	db.draw(other, 1)
	db.commit(other)
	fetchOnce(t, o)
	if err := o.readSequence(t.Context()); err != nil {
		t.Fatal(err)
	}
	fetchOnce(t, o)
	if o.cursor.watermark.low != 26 {
		t.Fatalf("the watermark is %d", o.cursor.watermark.low)
	}
	for _, tx := range pooled {
		db.commit(tx)
	}
	for _, want := range []int{10, 20, 25} { // a page of them at a time
		if err := o.sweepSlice(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := o.stats.rescues.Load(); n != int64(want) || o.lanes.waitingReloads() != want {
			t.Fatalf("%d rescued, %d lanes reload, want %d", n, o.lanes.waitingReloads(), want)
		}
	}
	if o.cursor.position != 26 || o.behind {
		t.Errorf("the cursor went back to %d, behind: %t", o.cursor.position, o.behind)
	}
	if o.sweep.position != 0 {
		t.Errorf("the walk is not complete: %d", o.sweep.position)
	}
	o.sweep.next, o.retries.next = time.Time{}, time.Now()
	for n, others := 25, 0; n > 0; {
		turn(t, o)
		if left := o.lanes.waitingReloads(); left < n {
			n, others = left, 0
		} else if others++; others == tasks {
			t.Fatalf("%d lanes wait, and %d turns in a row were something else's", n, others)
		}
	}
}

// turn has the loop do one thing that it chooses to do, and reports whether there was any.
func turn(t *testing.T, o *owner) bool {
	t.Helper()
	work, _ := o.choose()
	if work == nil {
		return false
	}
	if err := work(t.Context()); err != nil {
		t.Fatal(err)
	}
	return true
}

// rest has it do so until there is nothing more.
func rest(t *testing.T, o *owner) {
	t.Helper()
	for range 1000 {
		if !turn(t, o) {
			return
		}
	}
	t.Fatalf("does not come to rest: turns %v, cursor %+v, retries %+v", o.turns, o.cursor, o.retries)
}

// A row whose id the sequence has not given out yet is read whenever something is, and is no reason to read.
func TestRestsBelowForeignIDs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		retryAt int64
	}{{"pending", noRetry}, {"in retry", 1_000_000_000}, {"dead", deadLetter}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := tens
			cfg.PollInterval, cfg.DegradedPollInterval = time.Hour, time.Hour
			db := &table{holdBack: true, now: 1}
			o := newOwner(t, db, cfg)
			tx := db.begin(tableKey(1))
			for id := range int64(25) { // more than a page
				db.insert(tx, 1000+10*id, 1)
			}
			db.commit(tx)
			for _, r := range db.records {
				r.retryAt = tc.retryAt
			}
			rest(t, o)
			for n := range 3 { // the sequence goes on below them
				tx := db.begin(tableKey(2))
				id := db.draw(tx, 1)
				db.commit(tx)
				o.woken.Store(true)
				o.sweep.next = time.Time{}
				rest(t, o)
				r := o.lanes.next()
				if n == 0 && tc.retryAt == noRetry {
					r = o.lanes.next() // after the first of the others
				}
				if r == nil || r.id != id {
					t.Fatalf("started %+v, want event %d", r, id)
				}
				o.lanes.done(r, false)
				db.record(id).published = true
				o.lanes.settled([]settlement{{outcome: outcome{row: r, result: &dispatch.Outcome{}}, applied: true}})
			}
		})
	}
}

// Without room nothing is reloaded, and what waits for it must neither grow nor keep the loop spinning.
func TestSweepWaitsForRoom(t *testing.T) {
	t.Parallel()
	db := &table{holdBack: true, now: 1}
	o := newOwner(t, db, tens)
	o.behind = false
	for n := range 10 {
		o.lanes.pass(tableKey(n), int64(1+n))
	}
	for n := range o.lanes.limits.rows {
		o.lanes.offer(&row{id: int64(1000 + n), aggregate: tableKey(100 + n), payload: []byte("{}")})
	}
	for o.lanes.next() != nil { // all handlers are busy
	}
	work, next := o.choose()
	if work != nil {
		t.Error("there is work without room")
	}
	if wait := time.Until(next); wait <= 0 {
		t.Errorf("it looks again at once")
	}
}

// newOwner returns a loop at the start of a spell, which nothing but the test drives.
func newOwner(t interface{ Cleanup(func()) }, s statements, cfg Config) *owner {
	cfg.Listening, cfg.Suspect, cfg.Log = func() bool { return true }, func(string) {}, zerolog.Nop()
	p := &Poller{cfg: cfg, log: cfg.Log, lanes: newLanes(cfg.limits()), nudge: make(chan struct{}, 1), handlers: idleCrew(t)}
	return p.newOwner(s, &gate{})
}

// tens has pages of ten.
var tens = Config{BatchSize: 10, MaxBatchSize: 10, MaxBatchBytes: 1000, Concurrency: 4, LaneCap: 4}

// idleCrew leaves it to the test to take what is to be handled.
func idleCrew(t interface{ Cleanup(func()) }) *crew {
	c := newCrew(func() {})
	t.Cleanup(c.end)
	return c
}

func fetchOnce(t *testing.T, o *owner) {
	t.Helper()
	rows, bytes := o.lanes.room()
	if err := o.fetch(t.Context(), rows, bytes); err != nil {
		t.Fatal(err)
	}
}

// world is one run: a database, a loop, and everything around it.
type world struct {
	*rapid.T
	db    *table
	loop  *owner
	lanes *lanes

	running   []*row
	handled   []outcome    // not written
	committed []settlement // written; the loop has not been told
	unknown   []outcome    // written, but the answer was lost: they will be written again
	fate      map[int64]dispatch.Kind

	foreign  bool // ids that are not from the sequence
	silently bool // a person has redriven a dead letter, and told nobody
	quiet    bool // nothing happens around the loop any more
}

const worldAggregates = 3

func newWorld(t *rapid.T, ordering Ordering) *world {
	cfg := Config{
		Ordering:      ordering,
		BatchSize:     rapid.IntRange(1, 3).Draw(t, "batch size"),
		MaxBatchBytes: rapid.SampledFrom([]int{1, 5, 1000}).Draw(t, "batch bytes"),
		Concurrency:   rapid.IntRange(1, 4).Draw(t, "concurrency"),
		LaneCap:       rapid.IntRange(1, 3).Draw(t, "lane cap"),
		PollInterval:  time.Hour, DegradedPollInterval: time.Hour, // a poll is made by hand
	}
	cfg.MaxBatchSize = cfg.BatchSize + rapid.IntRange(0, 4).Draw(t, "batch growth")
	w := &world{
		T:    t,
		db:   &table{holdBack: ordering == PerAggregate},
		fate: map[int64]dispatch.Kind{},
	}
	w.loop = newOwner(t, w, cfg)
	w.lanes = w.loop.lanes
	return w
}

// step is one thing that the loop does, or that happens around it.
func (w *world) step() {
	switch below(12).Draw(w.T, "step") {
	case 0:
		return
	case 1, 2, 3:
		w.fetchPage()
	case 4:
		w.reloadLanes()
	case 5:
		w.lookForDue()
	case 6:
		w.sweepSlice()
	case 7:
		if below(4).Draw(w.T, "lose ownership") == 3 {
			w.Log("lose ownership")
			w.lanes.discard()
			w.loop = w.loop.newOwner(w, &gate{})
		}
	default:
		w.happen()
	}
	w.check()
}

func (w *world) fetchPage() bool {
	w.loop.takeSettled()
	rows, bytes := w.lanes.room()
	if rows <= 0 || bytes <= 0 {
		return false
	}
	w.must(w.loop.fetch(context.Background(), rows, bytes))
	w.Logf("fetched up to %d, watermark %d", w.loop.cursor.position, w.loop.cursor.watermark.low)
	return true
}

func (w *world) reloadLanes() bool {
	w.loop.takeSettled()
	rows, bytes := w.lanes.room()
	if rows <= 0 || bytes <= 0 || w.lanes.waitingReloads() == 0 {
		return false
	}
	w.must(w.loop.reloadLanes(context.Background(), rows, bytes))
	return true
}

func (w *world) lookForDue() bool {
	w.loop.takeSettled()
	w.loop.takeRedriven()
	if w.loop.retries.next.IsZero() {
		return false
	}
	w.must(w.loop.lookForDue(context.Background()))
	return true
}

func (w *world) sweepSlice() {
	w.loop.takeSettled()
	w.must(w.loop.sweepSlice(context.Background()))
	if n := w.loop.stats.rescues.Load(); n > 0 && !w.foreign {
		w.Fatalf("the sweep rescued %d events", n)
	}
}

// sweepAll goes to the end of a walk that is under way, and once from zero to the end: slices that stop early make it long.
func (w *world) sweepAll() {
	for range 2 {
		w.sweepSlice()
		for w.loop.sweep.position != 0 {
			w.sweepSlice()
		}
	}
}

func (w *world) must(err error) {
	if err != nil {
		w.Fatal(err)
	}
}

// happen is one thing that does not come from the loop.
func (w *world) happen() {
	switch below(15).Draw(w.T, "happens") {
	case 0:
		return
	case 1, 2:
		if key := tableKey(1 + below(worldAggregates).Draw(w.T, "aggregate")); !w.db.writes(key) {
			w.publish(w.db.begin(key))
		}
	case 3:
		if tx := pick(w, w.db.open); tx != nil {
			w.publish(tx)
		}
	case 4, 5:
		if tx := pick(w, w.db.open); tx != nil {
			w.Logf("%s commits", tx.name)
			w.db.commit(tx)
		}
	case 6:
		if tx := pick(w, w.db.open); tx != nil {
			w.Logf("%s rolls back", tx.name)
			w.db.rollback(tx)
		}
	case 7, 8:
		w.start()
	case 9, 10:
		if r := pick(w, w.running); r != nil {
			w.end(r, []dispatch.Kind{dispatch.Published, dispatch.Published, dispatch.Retry, dispatch.Dead}[below(4).Draw(w.T, "outcome")])
		}
	case 11:
		w.write()
	case 12:
		w.report()
	case 13:
		w.db.now += int64(1 + below(10).Draw(w.T, "µs"))
	case 14:
		if w.foreign && rapid.Bool().Draw(w.T, "disturb") {
			w.disturb()
		} else {
			w.redrive()
		}
	}
}

// below draws evenly from 0 to n-1; rapid's own ranges prefer small numbers.
func below(n int) *rapid.Generator[int] {
	if n == 1 {
		return rapid.Just(0)
	}
	return rapid.Custom(func(t *rapid.T) (drawn int) {
		for bit := 1; bit < n; bit <<= 1 {
			if rapid.Bool().Draw(t, "bit") {
				drawn |= bit
			}
		}
		return drawn % n
	})
}

// pick returns one of a list, the zero value of an empty one.
func pick[T any](w *world, list []T) (one T) {
	if len(list) == 0 {
		return one
	}
	return list[below(len(list)).Draw(w.T, "which")]
}

func (w *world) publish(tx *transaction) {
	id := w.db.draw(tx, 1+below(4).Draw(w.T, "size"))
	w.Logf("%s draws %d of %d", tx.name, id, tx.key.ID[15])
}

// start lets a handler take an event, and checks that it may.
func (w *world) start() bool {
	r := w.lanes.next()
	if r == nil {
		return false
	}
	w.Logf("start %d of %d", r.id, r.aggregate.ID[15])
	for _, other := range w.running {
		if other.aggregate == r.aggregate {
			w.Fatalf("event %d was started while %d of its aggregate was running", r.id, other.id)
		}
	}
	known := w.db.record(r.id)
	switch {
	case known.published || known.retryCount != r.retryCount || w.db.state(known) > due:
		w.Fatalf("event %d was started as it had been before it was settled", r.id)
	case slices.ContainsFunc(w.unsettled(), func(o outcome) bool { return o.row.id == r.id }):
		w.Fatalf("event %d was started again before its outcome was settled", r.id)
	}
	for _, earlier := range w.db.records {
		if earlier.key != r.aggregate || earlier.id >= r.id || w.foreign {
			continue
		}
		fate, settledOnce := w.fate[earlier.id]
		if !settledOnce || (fate == dispatch.Retry && w.db.holdBack) {
			w.Fatalf("event %d was started before %d of its aggregate (%s)", r.id, earlier.id, fate)
		}
	}
	w.running = append(w.running, r)
	return true
}

// end is the end of a handler.
func (w *world) end(r *row, kind dispatch.Kind) {
	w.Logf("end %d: %s", r.id, kind)
	w.running = slices.DeleteFunc(w.running, func(other *row) bool { return other == r })
	w.fate[r.id] = kind
	o := outcome{row: r, result: &dispatch.Outcome{Kind: kind}}
	if kind == dispatch.Retry {
		o.result.Delay = time.Duration(below(6).Draw(w.T, "delay")) * time.Microsecond
	}
	w.lanes.done(r, kind == dispatch.Retry)
	w.handled = append(w.handled, o)
}

// write commits all outcomes that wait. Now and then one is refused and becomes a retry, or the answer is lost.
func (w *world) write() {
	batch := append(w.unknown, w.handled...)
	w.unknown, w.handled = nil, nil
	for i := range batch {
		if below(10).Draw(w.T, "refused") == 9 {
			batch[i].result = &dispatch.Outcome{Kind: dispatch.Retry}
			w.Logf("%d is refused", batch[i].row.id)
		}
	}
	written := w.db.settle(batch)
	if below(10).Draw(w.T, "answer lost") == 9 {
		w.unknown = batch
		w.Logf("%d written, answer lost", len(batch))
		return
	}
	w.Logf("%d written", len(batch))
	w.committed = append(w.committed, written...)
}

// report tells the loop what has been written.
func (w *world) report() {
	w.loop.settled.put(w.committed)
	w.committed = nil
}

// unsettled returns the outcomes of which the loop has not taken in the settlement.
func (w *world) unsettled() (list []outcome) {
	list = slices.Concat(w.handled, w.unknown)
	for _, s := range slices.Concat(append(w.loop.settled.list, w.committed)...) {
		list = append(list, s.outcome)
	}
	return list
}

// redrive is a person who gives a dead letter another chance.
func (w *world) redrive() {
	for _, r := range w.db.records {
		if !r.published && r.retryAt == deadLetter {
			w.Logf("redrive %d", r.id)
			r.retryAt = w.db.now
			if rapid.Bool().Draw(w.T, "tell") {
				w.loop.Redriven()
			}
			// A loop that has yet to hear that the event died takes it for one in flight.
			died := slices.ContainsFunc(w.unsettled(), func(o outcome) bool { return o.row.id == r.id })
			w.silently = w.silently || died || !w.loop.redriven.Load()
			return
		}
	}
}

// disturb draws ids past the sequence, or those that it never gives out, or sets it back.
func (w *world) disturb() {
	if rapid.Bool().Draw(w.T, "set back") {
		w.db.lastValue = max(0, w.db.lastValue-int64(1+below(10).Draw(w.T, "by")))
		w.Logf("sequence set back to %d", w.db.lastValue)
		return
	}
	tx := w.db.begin(tableKey(1 + below(worldAggregates).Draw(w.T, "aggregate")))
	id := w.db.lastValue + int64(2+below(20).Draw(w.T, "ahead"))
	switch below(4).Draw(w.T, "far away") {
	case 0, 1:
		id = int64(-below(6).Draw(w.T, "below"))
	case 2:
		id = math.MaxInt64 - int64(below(3).Draw(w.T, "from the last"))
	}
	if !w.db.taken(id) {
		w.Logf("foreign id %d", id)
		w.db.insert(tx, id, 1)
	}
	w.db.commit(tx)
}

// finish has the loop choose what to do until everything is at rest, where it finds nothing more to do, also after polls, without
// the sweep where it should not be needed, and checks that nothing is left.
func (w *world) finish() {
	w.Log("finish")
	w.quiet = true
	sweeps := w.foreign || w.silently
	if !sweeps {
		w.loop.sweep.next = time.Now().Add(time.Hour)
	}
	for len(w.db.open) > 0 {
		w.db.commit(w.db.open[0])
	}
	for polls, rounds := 0, 0; polls < 3; rounds++ {
		if rounds > 10_000 {
			w.Fatalf("does not come to rest: turns %v, cursor %+v, retries %+v", w.loop.turns, w.loop.cursor, w.loop.retries)
		}
		w.work()
		w.check()
		w.db.now++ // else a retry that is due by this machine's clock is never due by the database's
		w.loop.takeSettled()
		w.loop.takeRedriven()
		switch work, _ := w.loop.choose(); {
		case work != nil:
			w.must(work(context.Background()))
		case w.ready():
		case w.advanceToNextRetry():
			polls, w.loop.retries.next = 0, time.Now()
		default:
			polls++
			w.loop.fallback.next = time.Time{}
			if sweeps {
				w.sweepAll()
			}
		}
	}
	for _, r := range w.db.records {
		if !r.published && r.retryAt != deadLetter {
			w.Fatalf("event %d of %d was lost", r.id, r.key.ID[15])
		}
	}
	w.sweepSlice()
	if low := w.loop.cursor.watermark.low; !w.foreign && low != w.loop.cursor.position {
		w.Errorf("at rest the watermark is %d, the cursor %d", low, w.loop.cursor.position)
	}
	if ls := w.lanes; len(ls.byKey)+len(ls.inFlight)+len(ls.reloads)+ls.bytes+ls.running+ls.retrying != 0 {
		w.Errorf("at rest something is left in the lanes: %+v", ls)
	}
}

// work handles and settles whatever is in the lanes.
func (w *world) work() {
	for w.start() {
	}
	for len(w.running) > 0 {
		w.end(w.running[0], dispatch.Published)
		for w.start() {
		}
	}
	w.committed = append(w.committed, w.db.settle(append(w.unknown, w.handled...))...)
	w.unknown, w.handled = nil, nil
	w.report()
}

// ready reports whether there is something for handlers.
func (w *world) ready() bool { return w.lanes.startable() > 0 }

// advanceToNextRetry moves the clock if a retry waits for its time, which the loop has to know.
func (w *world) advanceToNextRetry() bool {
	d, _ := w.db.fetchDue(context.Background(), &w.loop.retries, 0)
	if !d.waits {
		return false
	}
	if w.loop.retries.next.IsZero() {
		w.Fatal("a retry waits and the timer is not set")
	}
	w.db.now += d.nextIn.Microseconds()
	return true
}

// check compares the loop's memory with the world.
func (w *world) check() {
	c := &w.loop.cursor
	if lowest := w.db.lowestOpen(); c.watermark.low >= lowest && !w.foreign {
		w.Fatalf("watermark %d has passed %d, which is not committed", c.watermark.low, lowest)
	}
	checkLanes(w, w.lanes, w.running, w.unsettled())
	for _, r := range w.db.records {
		_, seen := slices.BinarySearch(c.window.seen, r.id)
		seen = seen || r.id <= c.watermark.low
		if seen && !r.published && w.db.state(r) == pending && !w.db.blocked(r.key, r.id) && !w.lanes.covers(r.key, r.id) && !w.foreign {
			w.Fatalf("event %d was seen and is covered by nothing", r.id)
		}
	}
}

// between is what happens while a statement is on its way.
func (w *world) between() {
	if w.quiet {
		return
	}
	for range below(6).Draw(w.T, "meanwhile") {
		w.happen()
	}
}

// The statements of the loop, each with something happening before it has its snapshot, and before its answer arrives.

func (w *world) fetch(ctx context.Context, c *cursor, limit, maxBytes int, holdBack bool) (page, error) {
	w.between()
	defer w.between()
	return w.db.fetch(ctx, c, limit, maxBytes, holdBack)
}

func (w *world) fetchNew(ctx context.Context, c *cursor, limit, maxBytes int) (page, error) {
	w.between()
	defer w.between()
	if below := w.db.unpublished(c.watermark.low, c.position); len(below) > 0 {
		w.Fatalf("what is new alone was asked for, and %d is below the cursor", below[0].id)
	}
	return w.db.fetchNew(ctx, c, limit, maxBytes)
}

func (w *world) fetchByID(ctx context.Context, ids []int64, maxBytes int) ([]*row, error) {
	w.between()
	defer w.between()
	return w.db.fetchByID(ctx, ids, maxBytes)
}

func (w *world) reload(ctx context.Context, lanes []reload, perLane, maxBytes int) ([]reloadResult, error) {
	w.between()
	defer w.between()
	return w.db.reload(ctx, lanes, perLane, maxBytes)
}

func (w *world) fetchDue(ctx context.Context, r *retries, limit int) (dueRows, error) {
	w.between()
	defer w.between()
	return w.db.fetchDue(ctx, r, limit)
}

// sweep stops early now and then, as it does where there are many rows.
func (w *world) sweep(ctx context.Context, after, upTo int64) ([]eventsdb.SweepSliceRow, int64, error) {
	w.between()
	if upTo > after+1 && w.db.lastValue%3 == 0 {
		upTo = after + (upTo-after)/2
	}
	w.between()
	defer w.between()
	return w.db.sweep(ctx, after, upTo)
}

// readSequence reads the last value first, and then the holders.
func (w *world) readSequence(context.Context) (q sequence, err error) {
	w.between()
	defer w.between()
	q.lastValue = w.db.lastValue
	w.between()
	q.holders = w.db.holders()
	return q, nil
}
