package peers

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// drainEvents is the backlog.
	drainEvents = 50_000
	// drainBatch is how many of its events one transaction publishes.
	drainBatch = 1000
	// drainFor bounds a measurement: whoever is not done by then has the rate of what is handled.
	drainFor = 15 * time.Second
)

// BenchmarkDrain measures how fast a backlog is worked off: see the package's documentation.
func BenchmarkDrain(b *testing.B) { takeTurns(b, measureDrain) }

func measureDrain(b *testing.B, c candidate) {
	bed := newBed(b, c)
	bed.preload(b)
	var handled atomic.Int64
	began := make(chan time.Time, 1)
	stop := bed.consume(b, func(string) {
		if handled.Add(1) == 1 {
			began <- time.Now()
		}
	})
	var first time.Time
	select {
	case first = <-began:
	case <-time.After(patience):
		b.Fatal("no event has arrived")
	}
	deadline := first.Add(drainFor)
	for handled.Load() < drainEvents && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	done := int64(drainEvents)
	if !bed.waitSettled(b, deadline) {
		done = handled.Load()
	}
	took := time.Since(first)
	stop()
	b.ReportMetric(float64(done)/took.Seconds(), "events/s")
}

// preload publishes the backlog, and leaves the tables as a server in use would have them: statistics and hint bits are fresh,
// and the pages of the log have been written out.
func (d *bed) preload(b *testing.B) {
	b.Helper()
	for n := 0; n < drainEvents; n += drainBatch {
		data := make([]string, drainBatch)
		for i := range data {
			data[i] = payload(n + i)
		}
		err := pgx.BeginFunc(b.Context(), d.pool, func(tx pgx.Tx) error { return d.publishMany(b.Context(), tx, data) })
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, sql := range []string{"VACUUM (ANALYZE)", "CHECKPOINT"} {
		if _, err := d.pool.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
}
