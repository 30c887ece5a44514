package poller

import (
	"math"
	"slices"
	"sync"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// lanes holds what has been fetched and not yet settled, one FIFO per aggregate, and decides which
// event a free handler slot takes next. It knows neither SQL nor a clock.
//
// A lane's events are handled strictly in id order, one at a time. What it leaves out it remembers
// as one number, more: the lowest id of its aggregate that was passed over. Everything from there
// on is in the database and nowhere else, and is reloaded once the queue has run empty. A lane moves
// through these states:
//
//	idle     nothing queued, nothing running, nothing passed over: the lane is forgotten
//	ready    events are queued and none is being handled
//	running  its head is being handled; the rest waits
//	held     its head failed, or was a retry, and what became of it is not yet committed: nothing starts, everything
//	         offered is passed over. Until the loop knows the commit it cannot tell whether the database still
//	         blocks what follows; then it can.
//
// In flight are the events that are queued, being handled, or handled and not yet settled. The fetch loop
// applies settlements between its statements only, so no statement that began before a settlement
// committed can bring the event back as new.
type lanes struct {
	limits limits

	mu       sync.Mutex
	byKey    map[aggregate]*lane
	inFlight map[int64]struct{}
	bytes    int       // in flight
	queued   int       // events in the lanes' queues
	fresh    readyList // lanes whose head never failed
	retries  readyList // lanes whose head is a retry
	running  int
	retrying int // of the running
	turn     int // picks that both lists wanted
	reloads  map[*lane]struct{}
}

// limits bounds what lanes holds and runs.
type limits struct {
	concurrency int  // handlers at once
	laneCap     int  // events queued in one lane
	rows        int  // events in flight
	bytes       int  // their size
	holdBack    bool // a failed event holds back its aggregate (Ordering: PerAggregate)
}

type lane struct {
	key     aggregate
	queue   []*row // waiting, in id order
	more    mark
	current *row // being handled
	held    *row // handled, and holds the lane until the loop knows that its outcome is committed
	ready   bool // on a ready list
	reload  bool // among the reloads
	single  [1]*row
}

// mark is the lowest id that was passed over, if one was. Not a number alone, since somebody may have chosen any as an id.
type mark struct {
	id    int64
	there bool
}

func (m *mark) lower(id int64) {
	if !m.there || id < m.id {
		*m = mark{id, true}
	}
}

// reaches reports whether an event with the id is left to the database.
func (m mark) reaches(id int64) bool { return m.there && m.id <= id }

func newLanes(l limits) *lanes {
	return &lanes{
		limits:   l,
		byKey:    make(map[aggregate]*lane),
		inFlight: make(map[int64]struct{}),
		reloads:  make(map[*lane]struct{}),
	}
}

// offer takes a row that can be handled now. One that is already in flight, or that its lane cannot hold,
// is passed over.
func (ls *lanes) offer(r *row) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.flies(r.id) {
		ls.put(ls.lane(r.aggregate), r)
	}
}

// pass remembers that an event was left in the database, so that its lane reloads it in its turn.
func (ls *lanes) pass(key aggregate, id int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.flies(id) {
		ls.passOver(ls.lane(key), id)
	}
}

// covers reports whether an event that could be handled now is known: in flight, or left to its lane.
func (ls *lanes) covers(key aggregate, id int64) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.flies(id) {
		return true
	}
	l, there := ls.byKey[key]
	return there && (l.held != nil || l.more.reaches(id))
}

// room returns how many rows and bytes may be fetched. While a handler slot is idle and no lane is ready, what is
// queued behind other events must not stop fetching: the longest lanes give up their tails.
func (ls *lanes) room() (rows, bytes int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.running < ls.limits.concurrency && ls.fresh.empty() && ls.retries.empty() {
		for ls.queued > 0 && (len(ls.inFlight) > ls.limits.rows/2 || ls.bytes > ls.limits.bytes/2) {
			ls.dropLongestTail()
		}
	}
	return ls.limits.rows - len(ls.inFlight), ls.limits.bytes - ls.bytes
}

// hungry reports whether handler slots are about to have nothing to do.
func (ls *lanes) hungry() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.fresh.len()+ls.retries.len() < ls.limits.concurrency
}

// next hands out the head of a ready lane for handling, or nil. Retries take at most half the slots. Where new events
// wait too, they are every second pick while they have less than a quarter of the slots, and every fourth from then
// on, so that neither starves the other.
func (ls *lanes) next() *row {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.take()
}

// startable returns how many handlers could be started now.
func (ls *lanes) startable() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	retries := min(ls.retries.len(), max(1, ls.limits.concurrency/2)-ls.retrying)
	return min(ls.limits.concurrency-ls.running, ls.fresh.len()+max(0, retries))
}

// done takes back a row whose handling has ended, and says whether its outcome is a failure that holds
// back the lane. It returns whether the fetch loop has something new to do.
func (ls *lanes) done(r *row, failed bool) (reload bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.running--
	if r.state == due {
		ls.retrying--
	}
	l := r.lane
	l.current = nil
	if ls.limits.holdBack && (failed || r.state == due) {
		l.held = r
		ls.dropFrom(l, 0)
	}
	ls.arrange(l)
	return l.reload
}

// settled ends the flight of events whose outcome is committed. Only the fetch loop calls it, between statements.
func (ls *lanes) settled(settlements []settlement) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for i := range settlements {
		ls.settle(&settlements[i])
	}
}

// abandon ends the flight of a row that was handled and will not be settled: shutdown cut it off.
func (ls *lanes) abandon(r *row) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.forget(r)
	if l := r.lane; l.held == r {
		l.held = nil
		ls.arrange(l)
	}
}

// waitingReloads returns how many lanes want to be reloaded.
func (ls *lanes) waitingReloads() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.reloads)
}

// reloadable returns up to n lanes that have run empty and have left events in the database.
func (ls *lanes) reloadable(n int) []reload {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var list []reload
	for l := range ls.reloads {
		if len(list) >= n {
			break
		}
		list = append(list, reload{key: l.key, from: l.more.id})
		l.more, l.reload = mark{}, false // what is passed over from now on is not part of the reload
		delete(ls.reloads, l)
	}
	return list
}

// reload is a lane's request for the lowest of its events from an id on.
type reload struct {
	key  aggregate
	from int64
}

// reloaded takes in the rows of one reload, in id order, of at most limit; blocked says that an event before them
// holds the aggregate back.
func (ls *lanes) reloaded(req reload, rows []*row, limit int, blocked bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lane(req.key)
	defer ls.arrange(l)
	if blocked && ls.limits.holdBack {
		return // settling the event that blocks reloads what follows it
	}
	for _, r := range rows {
		switch {
		case ls.flies(r.id) || r.state == dead:
			continue
		case r.state == waiting && ls.limits.holdBack:
			return // it blocks the rest
		case r.state == waiting:
			continue
		case r.payload == nil:
			ls.passOver(l, r.id)
			return
		}
		ls.put(l, r)
		if r.state == due && ls.limits.holdBack {
			return // it blocks the rest until it is settled
		}
	}
	if len(rows) == limit {
		ls.passOverAfter(l, rows[len(rows)-1].id)
	}
}

// discard drops everything that is not being handled or waiting to be settled: another worker may own it now.
func (ls *lanes) discard() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	clear(ls.reloads)
	ls.fresh, ls.retries = readyList{}, readyList{}
	for key, l := range ls.byKey {
		for _, r := range l.queue {
			ls.forget(r)
		}
		ls.queued -= len(l.queue)
		l.queue, l.more, l.ready, l.reload = nil, mark{}, false, false
		if l.current == nil && l.held == nil {
			delete(ls.byKey, key)
		}
	}
}

// counts returns the number of events in flight and of running handlers.
func (ls *lanes) counts() (inFlight, running int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.inFlight), ls.running
}

// The rest runs under mu.

func (ls *lanes) lane(key aggregate) *lane {
	l, there := ls.byKey[key]
	if !there {
		l = &lane{key: key}
		l.queue = l.single[:0] // most lanes never hold more
		ls.byKey[key] = l
	}
	return l
}

func (ls *lanes) flies(id int64) bool {
	_, flies := ls.inFlight[id]
	return flies
}

// put queues a row that is not in flight, or passes it over.
func (ls *lanes) put(l *lane, r *row) {
	at := len(l.queue)
	for at > 0 && l.queue[at-1].id > r.id {
		at-- // a late commit goes before what was drawn after it
	}
	if l.held != nil || l.more.reaches(r.id) || at == ls.limits.laneCap {
		ls.passOver(l, r.id)
		return
	}
	l.queue = slices.Insert(l.queue, at, r)
	r.lane = l
	ls.queued++
	ls.inFlight[r.id] = struct{}{}
	ls.bytes += r.size()
	ls.dropFrom(l, ls.limits.laneCap)
	ls.arrange(l)
}

func (ls *lanes) passOver(l *lane, id int64) {
	l.more.lower(id)
	ls.arrange(l)
}

// passOverAfter passes over what follows an id.
func (ls *lanes) passOverAfter(l *lane, id int64) {
	if id < math.MaxInt64 {
		l.more.lower(id + 1)
	}
	ls.arrange(l)
}

// dropFrom gives up the queue from index i on: it is passed over.
func (ls *lanes) dropFrom(l *lane, i int) {
	if i >= len(l.queue) {
		return
	}
	l.more.lower(l.queue[i].id)
	for _, r := range l.queue[i:] {
		ls.forget(r)
	}
	ls.queued -= len(l.queue) - i
	clear(l.queue[i:])
	l.queue = l.queue[:i]
}

// dropLongestTail halves the longest queue.
func (ls *lanes) dropLongestTail() {
	var longest *lane
	for _, l := range ls.byKey {
		if longest == nil || len(l.queue) > len(longest.queue) {
			longest = l
		}
	}
	ls.dropFrom(longest, len(longest.queue)/2)
	ls.arrange(longest)
}

func (ls *lanes) forget(r *row) {
	if ls.flies(r.id) {
		delete(ls.inFlight, r.id)
		ls.bytes -= r.size()
	}
}

func (ls *lanes) settle(s *settlement) {
	ls.forget(s.row)
	l := s.row.lane
	holds := l.held == s.row
	if holds {
		l.held = nil
	}
	switch {
	case !s.applied:
		// Somebody else settled it, or an earlier try whose answer was lost did. The database knows what it is now.
		ls.passOver(ls.lane(s.row.aggregate), s.row.id)
	case !holds:
	case s.result.Kind == dispatch.Retry:
		// From here on the database blocks what follows; what comes before it is another matter.
		if l.more.id > s.row.id {
			l.more = mark{}
		}
		ls.arrange(l)
	default:
		// It blocked what follows, which was passed over without a trace, perhaps by another worker.
		ls.passOverAfter(l, s.row.id)
	}
}

// arrange puts a lane where its state says: on a ready list, among the reloads, or out of memory.
func (ls *lanes) arrange(l *lane) {
	free := l.current == nil && l.held == nil
	if free && len(l.queue) > 0 && !l.ready {
		l.ready = true
		ls.listFor(l.queue[0]).push(l)
	}
	reload := l.more.there && l.held == nil && (len(l.queue) == 0 || l.more.id < l.queue[0].id)
	if reload != l.reload {
		l.reload = reload
		if reload {
			ls.reloads[l] = struct{}{}
		} else {
			delete(ls.reloads, l)
		}
	}
	if free && len(l.queue) == 0 && !l.more.there {
		delete(ls.byKey, l.key)
	}
}

// listFor returns the ready list of a lane with that head.
func (ls *lanes) listFor(head *row) *readyList {
	if head.state == due {
		return &ls.retries
	}
	return &ls.fresh
}

func (ls *lanes) take() *row {
	if ls.running >= ls.limits.concurrency {
		return nil
	}
	for {
		list := ls.choose()
		if list == nil {
			return nil
		}
		l := list.pop()
		l.ready = false
		r := l.queue[0]
		if list != ls.listFor(r) { // its head is another one than when it was put there
			ls.arrange(l)
			continue
		}
		l.queue[0] = nil
		if l.queue = l.queue[1:]; len(l.queue) == 0 {
			l.queue = l.single[:0]
		}
		ls.queued--
		l.current = r
		ls.running++
		if r.state == due {
			ls.retrying++
		}
		ls.arrange(l)
		return r
	}
}

// choose returns the list that the next free slot serves, nil if none can be.
func (ls *lanes) choose() *readyList {
	retryMayRun := !ls.retries.empty() && ls.retrying < max(1, ls.limits.concurrency/2)
	switch {
	case ls.fresh.empty() && !retryMayRun:
		return nil
	case !retryMayRun:
		return &ls.fresh
	case ls.fresh.empty():
		return &ls.retries
	}
	ls.turn++
	if few := ls.retrying < ls.limits.concurrency/4; ls.turn%4 == 0 || (few && ls.turn%2 == 0) {
		return &ls.retries
	}
	return &ls.fresh
}

// readyList is a FIFO of lanes.
type readyList struct {
	lanes []*lane
	head  int
}

func (q *readyList) empty() bool { return q.len() == 0 }
func (q *readyList) len() int    { return len(q.lanes) - q.head }

func (q *readyList) push(l *lane) { q.lanes = append(q.lanes, l) }

func (q *readyList) pop() *lane {
	l := q.lanes[q.head]
	q.lanes[q.head] = nil
	q.head++
	if q.head == len(q.lanes) {
		q.lanes, q.head = q.lanes[:0], 0
	} else if q.head > 1024 && q.head*2 > len(q.lanes) {
		n := copy(q.lanes, q.lanes[q.head:])
		clear(q.lanes[n:])
		q.lanes, q.head = q.lanes[:n], 0
	}
	return l
}
