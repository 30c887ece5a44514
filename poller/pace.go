package poller

import "time"

// pace decides, from how fast events arrive, whether publishers should announce them, and how often to look while they do
// not. It is pure.
//
// An announcement is the fastest wake, and costs an idle worker nothing; but publishers that announce commit one after
// another (migrations/00009_gate.sql). So the gate is wanted closed until announcements come fast, or publishers are seen
// waiting for one another, and then open for as long as a look every few milliseconds finds enough.
type pace struct {
	limits paceLimits
	open   bool      // no announcements wanted
	busy   bool      // the last window brought so many events that throughput counts for more than the next event's wait
	next   time.Time // when to look, while publishers may be silent
	rest   time.Duration

	began     time.Time // of the window
	count     int       // in the window: announcements while closed, events while open
	last      time.Time // announcement
	frequent  bool      // announcements come often enough to ask whether publishers wait for one another
	contended int       // readings that saw publishers wait for one another, less those that did not
}

// paceLimits are the numbers of a pace.
type paceLimits struct {
	// openAt announcements within openWithin open the gate.
	openAt     int
	openWithin time.Duration
	// It stays open while a window of keepWithin brings keepAt events.
	keepAt     int
	keepWithin time.Duration
	// busyAt events in such a window are a throughput to think of.
	busyAt int
	// look is the pause between two looks that find something; while the gate is on its way to being closed and nothing
	// comes it doubles, up to lookAtMost.
	look, lookAtMost time.Duration
}

// defaultPace opens at 800 announcements a second and closes below 400 events. Up to there a worker
// that is woken costs less than one that looks, and is faster. From 1,500 events a second it is busy: what one look finds says
// too little about that, since commits that share a flush come together.
var defaultPace = paceLimits{
	openAt: 16, openWithin: 20 * time.Millisecond,
	keepAt: 20, busyAt: 75, keepWithin: 50 * time.Millisecond,
	look: time.Millisecond, lookAtMost: 250 * time.Millisecond,
}

const (
	// contention is how many publishers wait for one another's announcements where it pays to have none, however few those
	// are: on a disk that flushes slowly they never come fast. It pays if that is seen more often than
	// not, contentionSeen times more.
	contention     = 2
	contentionSeen = 4
	// frequent is how far apart announcements may be that come often.
	frequent = 50 * time.Millisecond
	// lookShare bounds what looking costs: after a look it rests for so many times as long as that took, and longer while
	// it is busy.
	lookShare     = 2
	lookShareBusy = 6
	// longestRest bounds that rest: a look that was slow for once (a checkpoint, a busy machine) must not be followed by a
	// pause many times as long in which nobody announces anything.
	longestRest     = 3 * time.Millisecond
	longestRestBusy = 10 * time.Millisecond
)

// announced takes in that so many announcements came.
func (p *pace) announced(now time.Time, n int) {
	if n == 0 || p.open {
		return
	}
	p.frequent = n > 1 || now.Sub(p.last) < frequent
	p.last = now
	if now.Sub(p.began) > p.limits.openWithin {
		p.began, p.count = now, 0
	}
	if p.count += n; p.count >= p.limits.openAt {
		p.set(now, true)
	}
}

// waiting takes in that so many publishers are waiting to announce.
func (p *pace) waiting(now time.Time, publishers int) {
	if publishers < contention {
		p.contended = max(0, p.contended-1)
	} else if p.contended++; p.contended >= contentionSeen && !p.open {
		p.set(now, true)
	}
}

// fetched takes in a fetch that began then and found so many new events.
func (p *pace) fetched(began, now time.Time, events int) {
	if p.open {
		p.count += events
		if now.Sub(p.began) > p.limits.keepWithin {
			p.busy = p.count >= p.limits.busyAt
			p.set(now, p.count >= p.limits.keepAt)
		}
	}
	if p.open || events > 0 {
		p.rest = p.limits.look
	} else {
		p.rest = min(max(p.limits.look, 2*p.rest), p.limits.lookAtMost)
	}
	share, longest := time.Duration(lookShare), longestRest
	if p.busy {
		share, longest = lookShareBusy, longestRestBusy
	}
	p.next = now.Add(max(p.rest, min(share*now.Sub(began), longest)))
}

// lookSoon has the next look come soon: something has changed with the gate.
func (p *pace) lookSoon(now time.Time) {
	p.rest = p.limits.look
	if soon := now.Add(p.rest); soon.Before(p.next) {
		p.next = soon
	}
}

// set begins a window.
func (p *pace) set(now time.Time, open bool) {
	p.open, p.began, p.count, p.contended = open, now, 0, 0
}
