package poller

import "time"

// fallback is the clock of the safety net: when to fetch although no wake came. It is pure.
//
// While wakes arrive it polls slowly, so that a listener that goes silent costs at most one slow interval before it is
// noticed; without them, or when a poll found an event that no wake had announced, it polls fast.
type fallback struct {
	slow, fast time.Duration
	next       time.Time
	missed     int // polls in a row that found an event first
}

// interval is the current one.
func (f *fallback) interval(listening bool) time.Duration {
	if listening && f.missed == 0 {
		return f.slow
	}
	return f.fast
}

// fetched restarts the clock: any fetch is as good as a poll.
func (f *fallback) fetched(now time.Time, listening bool) {
	f.next = now.Add(f.interval(listening))
}

// at is when to poll next. A listener that failed since the last fetch brings it forward.
func (f *fallback) at(listening bool, now time.Time) time.Time {
	if soon := now.Add(f.interval(listening)); soon.Before(f.next) {
		f.next = soon
	}
	return f.next
}

// found takes in who found new events first: a wake, or the poll. It reports whether
// the poll was first.
func (f *fallback) found(events int, byWake bool) (pollFirst bool) {
	if events == 0 {
		return false
	}
	if byWake {
		f.missed = 0
		return false
	}
	f.missed++
	return true
}
