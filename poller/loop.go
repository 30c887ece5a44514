package poller

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/dispatch"
)

// owner is the state of the fetch loop for one spell of ownership. Nothing of it survives into the next.
type owner struct {
	*Poller
	s        statements
	cursor   cursor
	retries  retries
	sweep    sweep
	turns    turns
	oldest   time.Duration // seen in the current sweep
	fallback fallback
	gate     *gate
	pace     pace
	heard    int       // announcements since the last fetch began
	read     time.Time // the sequence, the last time
	behind   bool      // the last page was full: there is more to fetch
	warned   bool      // of ids above the sequence
}

// readPause is how long after a reading of the sequence the next one comes while events come often.
const readPause = 20 * time.Millisecond

// newOwner is the state at the start of a spell.
func (p *Poller) newOwner(s statements, g *gate) *owner {
	o := &owner{
		Poller:   p,
		s:        s,
		cursor:   cursor{page: pageSize{first: p.cfg.BatchSize, most: p.cfg.MaxBatchSize}},
		fallback: fallback{slow: p.cfg.PollInterval, fast: p.cfg.DegradedPollInterval},
		gate:     g,
		pace:     pace{limits: p.paceLimits},
		behind:   true, // the first scan starts at once, and from zero
	}
	o.retries.fromStart(time.Now())
	return o
}

// loop fetches until ctx ends (nil) or the session is lost (its error).
//
// It is the only place that runs statements on the owner's session, one at a time, and takes in settlements
// between them only. So whatever a statement returns is compared with what was in flight when it began.
func (p *Poller) loop(ctx context.Context, s *session, g *gate) error {
	defer s.watch(ctx)()
	o := p.newOwner(s, g)
	for ctx.Err() == nil {
		o.takeSettled()
		o.takeRedriven()
		o.moveGate()
		work, next := o.choose()
		if work == nil {
			o.wait(ctx, next)
			continue
		}
		if err := work(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		o.startHandlers()
	}
	return nil
}

// choose returns what to do now, the tasks taking turns; or nil, and when there will be something if nothing wakes the loop before. What
// lacks room waits for a settlement, not for a time.
func (o *owner) choose() (work func(context.Context) error, next time.Time) {
	rows, bytes := o.lanes.room()
	waiting := o.lanes.waitingReloads()
	mayAdd := waiting < o.cfg.MaxBatchSize // lanes that wait to be reloaded: they take memory
	now := time.Now()
	next = now.Add(sweepInterval)
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	var ready [tasks]bool
	ready[reloading] = waiting > 0 && rows > 0 && bytes > 0
	if mayAdd && !o.retries.next.IsZero() {
		ready[lookingForDue] = o.retries.due(now)
		earlier(o.retries.next)
	}
	if o.hasRoom(rows, bytes) {
		at := o.nextFetch(now)
		ready[fetching] = !now.Before(at)
		earlier(at)
	}
	if mayAdd {
		ready[sweeping] = !now.Before(o.sweep.next)
		earlier(o.sweep.next)
	}
	switch o.turns.next(ready) {
	case reloading:
		return func(ctx context.Context) error { return o.reloadLanes(ctx, rows, bytes) }, next
	case lookingForDue:
		return o.lookForDue, next
	case fetching:
		return func(ctx context.Context) error { return o.fetch(ctx, rows, bytes) }, next
	case sweeping:
		return o.sweepSlice, next
	}
	return nil, next
}

// nextFetch is when to fetch. While the gate is open a wake can wait for the next look: publishers come so fast
// that one fetch for each would be too many.
func (o *owner) nextFetch(now time.Time) time.Time {
	switch {
	case o.behind:
		return now
	case o.pace.open:
		return o.pace.next
	case o.woken.Load() || o.cursor.wantsFetch():
		return now
	}
	poll := o.fallback.at(o.cfg.Listening(), now)
	if !o.gate.closed() && o.pace.next.Before(poll) {
		return o.pace.next
	}
	return poll
}

// moveGate opens or closes the gate as the pace of the events wants it.
func (o *owner) moveGate() {
	now := time.Now()
	calls := int(o.calls.Swap(0))
	o.heard += calls
	o.pace.announced(now, calls)
	if o.gate.turned.Swap(false) {
		o.pace.lookSoon(now)
	}
	o.gate.want(o.pace.open)
}

// wait blocks until a wake, a settlement, an empty lane or a timer.
func (o *owner) wait(ctx context.Context, next time.Time) {
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	o.startHandlers() // those that found the lease too old
	select {
	case <-ctx.Done():
	case <-o.nudge:
	case <-timer.C:
	}
}

// takeSettled ends the flight of what has been settled since the last statement.
func (o *owner) takeSettled() {
	for _, list := range o.settled.take() {
		o.lanes.settled(list)
		for i := range list {
			s := &list[i]
			if !s.dueAt.IsZero() {
				o.retries.expect(s.dueAt, s.retryAt)
			}
			o.retries.note(s.result.Kind != dispatch.Published)
		}
	}
}

// takeRedriven has the loop look for due retries if somebody has made some.
func (o *owner) takeRedriven() {
	if o.redriven.Swap(false) {
		o.stats.wakes.redrives.Add(1)
		o.retries.fromStart(time.Now())
	}
}

// hasRoom reports whether a fetch is worth its round trip: there is room for a good part of a page, or handlers are
// about to run out of work.
func (o *owner) hasRoom(rows, bytes int) bool {
	if rows <= 0 || bytes <= 0 {
		return false
	}
	return rows >= o.cursor.page.size()/2 || o.lanes.hungry()
}

// fetch reads a page and hands its rows to their lanes, late commits first.
func (o *owner) fetch(ctx context.Context, rows, bytes int) error {
	byWake := o.woken.Swap(false)
	byClock := !byWake && !o.behind && !o.cursor.wantsFetch()
	polled := byClock && o.gate.closed()
	switch {
	case polled:
		o.stats.wakes.polls.Add(1)
	case byClock:
		o.stats.wakes.looks.Add(1)
	}
	heard, began := o.heard, time.Now()
	o.heard = 0
	limit := min(o.cursor.page.size(), rows)
	page, err := o.readPage(ctx, limit, min(bytes, o.cfg.MaxBatchBytes))
	if err != nil {
		return err
	}
	if told := o.cfg.Observer.Fetched; told != nil {
		told(len(page.rows), time.Since(began))
	}
	free := !o.mayBlock()
	late := o.cursor.late(page.below)
	if fits, err := o.takeLate(ctx, late, rows, bytes); !fits || err != nil {
		return err
	}
	if free && o.mayBlock() { // a late commit is in retry: what is blocked has to be read again
		o.behind = true
		return nil
	}
	found := o.offer(page.rows)
	o.startHandlers()
	runtime.Gosched() // let them run before this goroutine asks the database again
	ids := make([]int64, len(page.rows))
	for i, r := range page.rows {
		ids[i] = r.id
	}
	o.behind = !o.cursor.scanned(ids, found.taken, limit)
	now := time.Now()
	o.fallback.fetched(now, o.cfg.Listening())
	o.pace.fetched(began, now, found.new+len(late))
	o.judgeWakes(found.new+len(late), heard > 0 || o.calls.Load() > 0, polled)
	if o.wantsReading(now) || byWake && len(page.rows)+len(late) == 0 {
		return o.readSequence(ctx)
	}
	return nil
}

// wantsReading reports whether to read the sequence. While events come fast they bring the cursor no rest, so that
// a reading now and then does as well. And while announcements come often, a reading tells whether publishers wait for
// one another, also if the cursor has no use for it.
func (o *owner) wantsReading(now time.Time) bool {
	rested := !now.Before(o.read.Add(readPause))
	if o.pace.open {
		return o.cursor.wantsReading() && rested
	}
	return o.cursor.wantsReading() || o.pace.frequent && rested
}

// readPage asks no more of the database than what may be there: whether rows are blocked only while some event may be
// in retry or dead, and what is below the cursor only while something may appear there.
func (o *owner) readPage(ctx context.Context, limit, maxBytes int) (p page, err error) {
	holdBack := o.mayBlock()
	if o.cursor.closed() && !holdBack {
		p, err = o.s.fetchNew(ctx, &o.cursor, limit, maxBytes)
	} else {
		p, err = o.s.fetch(ctx, &o.cursor, limit, maxBytes, holdBack)
	}
	o.noteRetries(p.rows)
	if err == nil && !holdBack && o.mayBlock() { // it shows that there is one
		p, err = o.s.fetch(ctx, &o.cursor, limit, maxBytes, true)
		o.noteRetries(p.rows)
	}
	return p, err
}

// mayBlock reports whether an event can be held back by another one.
func (o *owner) mayBlock() bool { return o.lanes.limits.holdBack && !o.retries.none() }

// noteRetries takes in whether rows show that some event is in retry or dead.
func (o *owner) noteRetries(rows []*row) {
	o.retries.note(slices.ContainsFunc(rows, func(r *row) bool { return r.blocked || r.state != pending }))
}

// offered is what became of the rows of a page.
type offered struct {
	taken int // rows used, from the first on; the others did not fit
	new   int // events that could be handled and had not been in memory
}

// offer hands a page's rows to their lanes, up to the first whose payload did not fit the page.
func (o *owner) offer(rows []*row) (result offered) {
	for _, r := range rows {
		switch {
		case !o.handleable(r):
			// Retries have a query of their own. What they block is reloaded when they are settled.
		case r.payload == nil && !o.lanes.covers(r.aggregate, r.id):
			return result
		default:
			if !o.lanes.covers(r.aggregate, r.id) {
				result.new++
			}
			o.lanes.offer(r)
		}
		result.taken++
	}
	return result
}

// handleable reports whether a row was neither a retry nor behind one when it was read.
func (o *owner) handleable(r *row) bool {
	return r.state == pending && !(r.blocked && o.lanes.limits.holdBack)
}

// takeLate takes in ids that appeared below the cursor. A few are read by id. Of many, or what does not fit, the
// cursor goes back below the first, and the page that they came with has to be fetched again. So it has where one cannot
// be handled any more: the page is older than that, and what follows in it would overtake.
func (o *owner) takeLate(ctx context.Context, late []int64, rows, bytes int) (fits bool, err error) {
	if len(late) == 0 {
		return true, nil
	}
	if len(late) > min(o.cfg.MaxBatchSize, rows) {
		o.goBack(late[0] - 1)
		return false, nil
	}
	found, err := o.s.fetchByID(ctx, late, min(bytes, o.cfg.MaxBatchBytes))
	if err != nil {
		return false, err
	}
	o.noteRetries(found)
	if taken := o.offer(found).taken; taken < len(found) {
		o.goBack(found[taken].id - 1)
		return false, nil
	}
	o.cursor.seen(late)
	for _, r := range found {
		if !o.handleable(r) {
			o.behind = true
			return false, nil
		}
	}
	return true, nil
}

// goBack makes the next fetch start after id.
func (o *owner) goBack(id int64) {
	o.cursor.rewind(id)
	o.behind = true
}

// judgeWakes compares who came first, notifications or the poll.
func (o *owner) judgeWakes(events int, announced, polled bool) {
	if !announced && (!polled || !o.cfg.Listening()) {
		return // catching up says nothing about wakes, nor does a listener that is known to be deaf
	}
	if o.fallback.found(events, announced) {
		o.gate.doubt()
		o.cfg.Suspect("a poll found an event that no notification had announced")
	}
	// Once is a race between the poll and a notification; twice in a row is not.
	if unannounced := o.fallback.missed > 1; o.stats.polling.Swap(unannounced) != unannounced {
		if unannounced {
			o.log.Warn().Msg("events_not_announced")
		} else {
			o.log.Info().Msg("events_announced_again")
		}
	}
}

// readSequence takes the watermark on, or finds that the sequence was set back, in which case what is new is below the
// cursor: then everything is read again.
func (o *owner) readSequence(ctx context.Context) error {
	q, err := o.s.readSequence(ctx)
	if err != nil {
		return err
	}
	o.read = time.Now()
	o.pace.waiting(o.read, q.notifying)
	if !o.warned && o.cursor.above(q.lastValue) {
		o.warned = true
		o.log.Warn().Int64("event_id", o.cursor.position).Int64("sequence", q.lastValue).
			Msg("ids_above_sequence: each fetch reads them anew; see \"Ids above the sequence\" in docs/operations.md")
	}
	if o.cursor.sequence(q.lastValue, q.holders) {
		o.behind = true
	}
	return nil
}

// reloadLanes reads the lowest events of lanes that have run empty: as many lanes as leave a quarter of the room to new
// events, and at least one.
func (o *owner) reloadLanes(ctx context.Context, rows, bytes int) error {
	perLane := o.cfg.LaneCap + 1 // one more than fits says whether there are more
	lanes := o.lanes.reloadable(max(1, (rows-o.lanes.limits.rows/4)/perLane))
	if len(lanes) == 0 { // a failure has just held the lane back
		return nil
	}
	results, err := o.s.reload(ctx, lanes, perLane, max(1, min(bytes, o.cfg.MaxBatchBytes)/len(lanes)))
	if err != nil {
		return err
	}
	for i, l := range lanes {
		o.retries.note(results[i].blocked)
		o.noteRetries(results[i].rows)
		o.lanes.reloaded(l, results[i].rows, perLane, results[i].blocked)
	}
	return nil
}

// lookForDue makes the lanes of due retries reload themselves.
func (o *owner) lookForDue(ctx context.Context) error {
	limit := o.cfg.MaxBatchSize
	found, err := o.s.fetchDue(ctx, &o.retries, limit)
	if err != nil {
		return err
	}
	if len(found.rows) > 0 {
		o.stats.wakes.retries.Add(1)
	}
	for _, r := range found.rows {
		o.lanes.pass(r.aggregate, r.id)
	}
	o.retries.found(time.Now(), found, len(found.rows) == limit)
	return nil
}

// sweepSlice looks for events that no lane, cursor or block covers.
func (o *owner) sweepSlice(ctx context.Context) error {
	watermark := o.cursor.watermark.low
	began := time.Now()
	after, upTo := o.sweep.slice(watermark, began)
	rows, reached, err := o.s.sweep(ctx, after, upTo)
	if err != nil {
		return err
	}
	var uncovered []eventsdb.SweepSliceRow
	for _, r := range rows {
		o.oldest = max(o.oldest, time.Duration(r.AgeUs)*time.Microsecond)
		if o.lanes.covers(aggregate{r.AggregateType, r.AggregateID}, r.ID) {
			continue
		}
		if len(uncovered) == o.cfg.MaxBatchSize { // their lanes take memory: the next slice goes on here
			reached = r.ID - 1
			break
		}
		uncovered = append(uncovered, r)
	}
	o.rescue(uncovered)
	if o.sweep.swept(reached, watermark, time.Since(began), time.Now()) {
		o.stats.lastSweep.Store(int64(time.Since(epoch)))
		o.stats.oldestUS.Store(o.oldest.Microseconds())
		o.oldest = 0
		if inFlight, _ := o.lanes.counts(); inFlight == 0 { // else there may be many due rows to look at
			o.retries.confirm(time.Now())
		}
	}
	return nil
}

// rescue makes the lanes of events that nothing covers reload themselves. The cursor stays where it is: going back below them
// it would read every dead letter above once more.
func (o *owner) rescue(rows []eventsdb.SweepSliceRow) {
	var rescued []int64 // those that a wake should have found
	for _, r := range rows {
		o.lanes.pass(aggregate{r.AggregateType, r.AggregateID}, r.ID)
		if r.NextRetryAt.Valid { // made due by somebody who told nobody
			o.retries.note(true)
			continue
		}
		rescued = append(rescued, r.ID)
	}
	if len(rescued) > 0 {
		o.stats.rescues.Add(int64(len(rescued)))
		o.log.Warn().Int64("event_id", rescued[0]).Int("events", len(rescued)).Msg("events_rescued")
	}
}
