package measure

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// arrivals notes when each event reached a handler. It is safe for concurrent use, with one goroutine waiting.
type arrivals struct {
	mu   sync.Mutex
	at   map[int64]time.Time // by id, the first time
	news chan struct{}       // holds a token after an arrival
}

func newArrivals() *arrivals {
	return &arrivals{at: make(map[int64]time.Time), news: make(chan struct{}, 1)}
}

// add notes the arrival of an event now.
func (a *arrivals) add(id int64) {
	now := time.Now()
	a.mu.Lock()
	if _, again := a.at[id]; !again {
		a.at[id] = now
	}
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default:
	}
}

func (a *arrivals) of(id int64) (at time.Time, arrived bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, arrived = a.at[id]
	return at, arrived
}

// wait blocks until an event has arrived, and returns when it did.
func (a *arrivals) wait(ctx context.Context, id int64) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("event %d has not arrived within %s", id, patience))
	defer cancel()
	for {
		if at, arrived := a.of(id); arrived {
			return at, nil
		}
		select {
		case <-a.news:
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
}

// forget starts anew.
func (a *arrivals) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.at)
}
