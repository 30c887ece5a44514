package poller

import (
	"sync/atomic"
	"time"
)

// Observer has functions that are told what a poller has done. Those that are nil are not called. They are called on the poller's own goroutines, so
// they must return at once.
type Observer struct {
	// Fetched is called after each fetch of new events, with how many rows came and how long it took.
	Fetched func(rows int, took time.Duration)
	// Settled is called after each write of outcomes.
	Settled func(Batch)
}

// Batch is one write of outcomes. With an Err nothing of it was written, and all of it comes again.
type Batch struct {
	Published, Retried, Dead int
	Took                     time.Duration
	Err                      error
}

// Wakes counts what had the owner look for events, by kind.
type Wakes struct {
	Notifications int64 // of the trigger; and after each LISTEN, for what was committed before it
	Calls         int64 // of Wake, by an embedding service
	Gates         int64 // the gate was closed, or lost its session: what was committed in silence
	Looks         int64 // publishers do not notify, since the worker is awake
	Polls         int64 // of the fallback
	Retries       int64 // the time of an event in retry
	Redrives      int64 // somebody made dead letters due
}

// wakes is [Wakes], counted.
type wakes struct{ notifications, calls, gates, looks, polls, retries, redrives atomic.Int64 }

func (w *wakes) counts() Wakes {
	return Wakes{
		Notifications: w.notifications.Load(), Calls: w.calls.Load(), Gates: w.gates.Load(), Looks: w.looks.Load(),
		Polls: w.polls.Load(), Retries: w.retries.Load(), Redrives: w.redrives.Load(),
	}
}
