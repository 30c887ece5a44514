package demo

import (
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox"
)

// ledger keeps the books of the demo: what was published, whether it was committed, and what the handlers saw of
// it. It knows no SQL and no clock. An event is entered before its commit and leaves when it is delivered or dead,
// so its size is that of what is under way.
type ledger struct {
	retry []time.Duration
	show  func(attempt) // called for every attempt, causes before their consequences; must not block
	empty chan struct{} // takes a value when the last event leaves

	mu         sync.Mutex
	events     map[int64]*entry
	aggregates map[aggregate]*queue
	abandoned  map[int64]bool
	books      books
	latency    sample // from commit to handler
	pastDue    sample
	lastShown  time.Time
}

// books is what the ledger counts.
type books struct {
	Published  int // committed events
	ByHandlers int // of them published by handlers
	Aggregates int
	RolledBack int // events whose transaction was rolled back
	Delivered  int
	Retried    int // of them after a failure
	Failed     int // attempts
	Dead       int
	Early      int // first attempts that began before the commit was acknowledged
	Waited     int // first attempts that an earlier event of the aggregate had held back
	Repeated   int // attempts at events that had been delivered
	Ghosts     int // attempts at events that were rolled back
	OutOfOrder int // attempts that began before an earlier event of the aggregate was done
	Unlinked   int // caused events that do not name their cause or have another correlation id
	Retrying   int // now
	LastDead   attempt
}

type aggregate struct {
	kind string
	id   uuid.UUID
}

// queue is what an aggregate's events wait in, lowest id first.
type queue struct {
	ids      []int64
	counted  bool      // in books.Aggregates
	heldTill time.Time // when the last event that had failed was done
}

func (q *queue) leave(id int64) {
	q.ids = slices.DeleteFunc(q.ids, func(other int64) bool { return other == id })
}

// entry is an event under way.
type entry struct {
	aggregate   aggregate
	correlation string
	cause       int64 // id of the event whose handler published it; 0: none
	causeName   string
	committed   time.Time // when the commit was acknowledged; zero: not yet
	running     bool
	done        bool      // delivered or dead, and waiting for the acknowledgement
	ended       []attempt // that were over before the commit was acknowledged
	waiting     []attempt // of consequences: shown after this one
}

// outcome is how an attempt ended.
type outcome int

const (
	delivered outcome = iota + 1
	failed
	dead
)

// attempt is one line of the demo.
type attempt struct {
	id        int64
	began     time.Time // when the handler was called
	shown     time.Time // when all that is shown of it was known: these times never go backwards
	eventType string
	aggregate aggregate
	number    int           // 1 for the first
	latency   time.Duration // from the commit; of a retry, from the time it was due
	waited    bool          // held back by an earlier event of the aggregate
	caused    bool          // published by a handler
	outcome   outcome
	retryIn   time.Duration
	reason    string // of a failure
}

func newLedger(retry []time.Duration, show func(attempt)) *ledger {
	return &ledger{
		retry: retry, show: show, empty: make(chan struct{}, 1),
		events: make(map[int64]*entry), aggregates: make(map[aggregate]*queue), abandoned: make(map[int64]bool),
	}
}

// publish enters an event whose transaction is still open. cause may be nil.
func (l *ledger) publish(id int64, m outbox.Message, cause *outbox.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &entry{aggregate: aggregate{m.AggregateType, m.AggregateID}, correlation: m.CorrelationID}
	if cause != nil {
		e.cause, e.causeName = cause.ID, cause.PublicID.String()
	}
	l.events[id] = e
	q := l.aggregates[e.aggregate]
	if q == nil {
		q = &queue{}
		l.aggregates[e.aggregate] = q
	}
	q.ids = append(q.ids, id)
}

// abandon takes back events whose transaction is about to be rolled back.
func (l *ledger) abandon(ids []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.abandoned[id] = true
		l.books.RolledBack++
		l.aggregates[l.events[id].aggregate].leave(id)
		l.remove(id)
	}
}

// commit says when the commit of events was acknowledged.
func (l *ledger) commit(ids []int64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		e := l.events[id]
		e.committed = at
		l.books.Published++
		if e.cause != 0 {
			l.books.ByHandlers++
		}
		if q := l.aggregates[e.aggregate]; !q.counted {
			q.counted = true
			l.books.Aggregates++
		}
		for _, a := range e.ended {
			l.enter(e, a, at)
		}
		e.ended = nil
	}
}

// begin says that a handler is called.
func (l *ledger) begin(e *outbox.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	en := l.events[e.ID]
	switch {
	case l.abandoned[e.ID]:
		l.books.Ghosts++
	case en == nil || en.done:
		l.books.Repeated++
	default:
		if en.running || l.aggregates[en.aggregate].ids[0] != e.ID {
			l.books.OutOfOrder++
		}
		if en.causeName != e.Metadata.CausationID || en.correlation != e.Metadata.CorrelationID {
			l.books.Unlinked++
		}
		en.running = true
	}
}

// end says how the handler that was called at began has ended. pastDue is meant for retries.
func (l *ledger) end(e *outbox.Event, began time.Time, pastDue time.Duration, err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	en := l.events[e.ID]
	if en == nil || en.done {
		return // begin has counted it
	}
	a := attempt{
		id: e.ID, began: began, eventType: e.Type, aggregate: en.aggregate, number: e.Attempt,
		latency: pastDue, caused: en.cause != 0, outcome: delivered,
	}
	if err != nil {
		a.reason = err.Error()
		if a.outcome = dead; e.Attempt <= len(l.retry) {
			a.outcome, a.retryIn = failed, l.retry[e.Attempt-1]
		}
	}
	en.running = false
	if q := l.aggregates[en.aggregate]; a.outcome != failed {
		en.done = true
		q.leave(a.id)
		if e.Attempt > 1 {
			q.heldTill = now
		}
	}
	if en.committed.IsZero() {
		en.ended = append(en.ended, a) // the handler was faster than the acknowledgement
		return
	}
	l.enter(en, a, now)
}

// enter books an attempt at an event whose commit has been acknowledged, and shows it.
func (l *ledger) enter(e *entry, a attempt, now time.Time) {
	if a.number == 1 {
		// The zero point is the acknowledgement. A handler that had begun by then took no time at all.
		a.latency = a.began.Sub(e.committed)
		if a.latency <= 0 {
			a.latency = 0
			l.books.Early++
		}
		held := l.aggregates[a.aggregate].heldTill
		a.waited = e.committed.Before(held) && !a.began.Before(held)
		if a.waited {
			l.books.Waited++
		} else {
			l.latency.add(a.latency)
		}
	} else {
		l.pastDue.add(a.latency)
		l.books.Retrying--
	}
	switch a.outcome {
	case delivered:
		l.books.Delivered++
		if a.number > 1 {
			l.books.Retried++
		}
	case failed:
		l.books.Failed++
		l.books.Retrying++
	case dead:
		l.books.Failed++
		l.books.Dead++
		l.books.LastDead = a
	}
	lines := []attempt{a}
	if a.outcome != failed {
		lines = append(lines, e.waiting...)
		l.remove(a.id)
	}
	if cause := l.events[e.cause]; cause != nil {
		// Its handler is about to return: it reads better when the cause comes first.
		cause.waiting = append(cause.waiting, lines...)
		return
	}
	if now.After(l.lastShown) { // it was read before this goroutine got the lock
		l.lastShown = now
	}
	for _, line := range lines {
		line.shown = l.lastShown
		l.show(line)
	}
}

func (l *ledger) remove(id int64) {
	delete(l.events, id)
	if len(l.events) == 0 {
		select {
		case l.empty <- struct{}{}:
		default:
		}
	}
}

// underWay returns how many events are neither delivered nor dead.
func (l *ledger) underWay() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// read returns the books, and the latency and the delays of retries so far.
func (l *ledger) read() (b books, latency, pastDue percentiles) {
	l.mu.Lock()
	b = l.books
	latencies, delays := l.latency.copy(), l.pastDue.copy()
	l.mu.Unlock()
	return b, percentilesOf(latencies), percentilesOf(delays) // they sort, which handlers need not wait for
}
