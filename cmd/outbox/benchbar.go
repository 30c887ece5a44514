package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	// barEvery is how often the bar moves. What is measured should not be disturbed by it.
	barEvery = 250 * time.Millisecond
	// barWidth is its length in characters.
	barWidth = 30
)

// benchBar is a line on a terminal that says which measurement is under way and how much is left, rewritten in place. A nil one
// shows nothing.
type benchBar struct {
	w      io.Writer
	budget time.Duration
	stop   chan struct{}
	ended  sync.WaitGroup

	mu    sync.Mutex
	name  string
	done  float64 // before the measurement that is under way, of 1
	share float64 // of that one
	since time.Time
}

func newBenchBar(w io.Writer, budget time.Duration) *benchBar {
	b := &benchBar{w: w, budget: budget, stop: make(chan struct{}), name: "setting up", since: time.Now()}
	b.ended.Go(func() {
		tick := time.NewTicker(barEvery)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				b.show(now)
			case <-b.stop:
				return
			}
		}
	})
	return b
}

// begin says which measurement begins.
func (b *benchBar) begin(name string, done, share float64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.name, b.done, b.share, b.since = name, done, share, time.Now()
	b.mu.Unlock()
	b.show(time.Now())
}

// show writes the line. Within a measurement the bar moves with the time, and waits where that takes longer than planned.
func (b *benchBar) show(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	planned := b.share * float64(b.budget)
	within := 0.0
	if planned > 0 {
		within = min(float64(now.Sub(b.since))/planned, 1)
	}
	part := b.done + within*b.share
	full := min(int(part*barWidth), barWidth)
	fmt.Fprintf(b.w, "\r[%s%s] %3.0f %%  %s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*part, b.name)
}

// end clears the line.
func (b *benchBar) end() {
	if b == nil {
		return
	}
	close(b.stop)
	b.ended.Wait()
	fmt.Fprint(b.w, "\r\x1b[K")
}
