package peers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// steadyInterval is the time between two events.
	steadyInterval = time.Second / 1000
	// steadyWarmUp events are not measured, the steadyEvents that follow are.
	steadyWarmUp = 1000
	steadyEvents = 5000
	// steadyPublishers is how many connections take turns in publishing.
	steadyPublishers = 8
)

// BenchmarkSteady measures latency under a load that does not wait for anyone: see the package's documentation.
func BenchmarkSteady(b *testing.B) { takeTurns(b, measureSteady) }

func measureSteady(b *testing.B, c candidate) {
	bed := newBed(b, c)
	began := time.Now().Add(time.Second) // the consumer's start is no part of it
	var handled firstTimes
	stop := bed.consume(b, func(data string) { handled.note(number(data), time.Since(began)) })
	due := func(n int) time.Duration { return time.Duration(n) * steadyInterval }

	inTurns(b, bed, steadyPublishers, func(ctx context.Context, conn *pgx.Conn, publisher int) error {
		for n := publisher; n < steadyWarmUp+steadyEvents; n += steadyPublishers {
			time.Sleep(due(n) - time.Since(began))
			if err := bed.commit(ctx, conn, n); err != nil {
				return err
			}
		}
		return nil
	})
	handled.wait(b, steadyWarmUp+steadyEvents)
	stop()

	l := newLatencies()
	for n := steadyWarmUp; n < steadyWarmUp+steadyEvents; n++ {
		l.add(b, handled.at(n)-due(n))
	}
	l.report(b, "")
}

// firstTimes notes when each event was first handled. Its zero value is ready.
type firstTimes struct {
	since [steadyWarmUp + steadyEvents]atomic.Int64 // in nanoseconds; 0: not yet
	count atomic.Int64
}

func (f *firstTimes) note(n int, since time.Duration) {
	if f.since[n].CompareAndSwap(0, int64(since)) {
		f.count.Add(1)
	}
}

func (f *firstTimes) at(n int) time.Duration { return time.Duration(f.since[n].Load()) }

// wait blocks until so many events have been handled.
func (f *firstTimes) wait(b *testing.B, count int64) {
	b.Helper()
	for deadline := time.Now().Add(patience); f.count.Load() < count; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d events have arrived", f.count.Load(), count)
		}
	}
}

// inTurns runs publish in so many sessions at once, and waits for all of them.
func inTurns(b *testing.B, bed *bed, sessions int, publish func(ctx context.Context, conn *pgx.Conn, session int) error) {
	b.Helper()
	errs := make([]error, sessions)
	var running sync.WaitGroup
	for session := range sessions {
		conn := bed.connect(b)
		running.Go(func() { errs[session] = publish(b.Context(), conn, session) })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}
