package peers

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	// latencyFor is how long a measurement takes.
	latencyFor = 10 * time.Second
	// latencyWarmUp events come first, unmeasured, for at most latencyWarmUpFor: plans and caches are made.
	latencyWarmUp    = 50
	latencyWarmUpFor = 3 * time.Second
	// latencyPause is the shortest time between two events.
	latencyPause = 3 * time.Millisecond
)

// arrival is the start of a handler.
type arrival struct {
	n  int
	at time.Time
}

// BenchmarkLatency measures the time from commit to handler on an idle consumer: see the package's documentation.
func BenchmarkLatency(b *testing.B) { takeTurns(b, measureLatency) }

func measureLatency(b *testing.B, c candidate) {
	bed := newBed(b, c)
	arrivals := make(chan arrival, 1024)
	stop := bed.consume(b, func(data string) {
		at := time.Now()
		arrivals <- arrival{number(data), at}
	})
	publisher := bed.connect(b)
	n := 0
	// next publishes an event and waits until it has arrived. Then it pauses for as long as the consumer needs to come to
	// rest, and up to twice that, so that the next event meets its timer anywhere.
	next := func() time.Duration {
		n++
		if err := bed.commit(b.Context(), publisher, n); err != nil {
			b.Fatal(err)
		}
		committed := time.Now()
		at := await(b, arrivals, n)
		pause := max(c.timer, latencyPause)
		time.Sleep(pause + rand.N(pause))
		return at.Sub(committed)
	}
	for began := time.Now(); n < latencyWarmUp && time.Since(began) < latencyWarmUpFor; {
		next()
	}
	l := newLatencies()
	for began := time.Now(); time.Since(began) < latencyFor; {
		l.add(b, next())
	}
	stop()
	l.report(b, "")
	b.ReportMetric(float64(l.h.TotalCount()), "events")
}

// await returns when event n was first handled.
func await(b *testing.B, arrivals <-chan arrival, n int) time.Time {
	b.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case a := <-arrivals:
			if a.n == n {
				return a.at
			}
		case <-deadline.C:
			b.Fatalf("event %d has not arrived", n)
		}
	}
}
