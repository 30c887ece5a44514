package poller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/dispatch"
)

var (
	errAway    = errors.New("connection refused")
	errRefused = fmt.Errorf("settle: %w", &pgconn.PgError{Code: "22021", Message: "invalid byte sequence"})
)

// settlerBench is a settler whose database is in memory, in the time of a synctest bubble.
type settlerBench struct {
	*settler
	t        rapid.TB
	db       *table
	log      bytes.Buffer
	added    map[int64]outcome
	results  map[int64]settlement
	stop     context.CancelFunc
	drain    chan struct{}
	finished chan struct{}

	delay    time.Duration  // of a write
	faults   []string       // of the next writes: "", away, unknown
	poison   map[int64]bool // outcomes that the database refuses; it takes a retry instead
	stubborn map[int64]bool // events of which the database takes nothing
	unhooked atomic.Int64   // the event that the hook does not let be published
	writes   int
}

func newSettlerBench(t rapid.TB, events int) *settlerBench {
	b := &settlerBench{
		t: t, db: &table{now: 1}, added: map[int64]outcome{}, results: map[int64]settlement{},
		drain: make(chan struct{}), finished: make(chan struct{}), poison: map[int64]bool{}, stubborn: map[int64]bool{},
	}
	tx := b.db.begin(tableKey(1))
	for range events {
		b.db.draw(tx, 1)
	}
	b.db.commit(tx)
	b.settler = newSettler(b.writeBatch, b.take, zerolog.New(&b.log))
	return b
}

func (b *settlerBench) start() {
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	go func() {
		defer close(b.finished)
		b.run(ctx, b.drain)
	}()
}

// end ends the settler's context and waits for it.
func (b *settlerBench) end() {
	b.stop()
	<-b.finished
}

// complete lets the settler write all it has.
func (b *settlerBench) complete() {
	close(b.drain)
	<-b.finished
	b.stop()
}

func (b *settlerBench) handle(id int64, kind dispatch.Kind) {
	o := outcome{row: b.db.read(b.db.record(id)), result: &dispatch.Outcome{Kind: kind, Delay: time.Hour}}
	b.added[id] = o
	b.add(o)
}

func (b *settlerBench) writeBatch(ctx context.Context, batch []outcome) ([]settlement, error) {
	b.writes++
	if !slices.IsSortedFunc(batch, func(x, y outcome) int { return int(x.row.id - y.row.id) }) {
		b.t.Errorf("a write is not in id order: %v", ids(batch))
	}
	select {
	case <-time.After(b.delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	fault := ""
	if len(b.faults) > 0 {
		fault, b.faults = b.faults[0], b.faults[1:]
	}
	if fault == "away" {
		return nil, errAway
	}
	for _, o := range batch {
		if b.stubborn[o.row.id] || (b.poison[o.row.id] && !strings.Contains(o.result.Error, "could not be written")) {
			return nil, errRefused
		}
	}
	for _, o := range batch {
		if b.unhooked.Load() == o.row.id && o.result.Kind == dispatch.Published {
			return nil, &hookError{errRefused}
		}
	}
	written := b.db.settle(batch)
	if fault == "unknown" {
		return nil, errAway
	}
	return written, nil
}

func (b *settlerBench) take(list []settlement) {
	for _, s := range list {
		if _, twice := b.results[s.row.id]; twice {
			b.t.Errorf("event %d is settled twice", s.row.id)
		}
		b.results[s.row.id] = s
	}
}

func ids(batch []outcome) (list []int64) {
	for _, o := range batch {
		list = append(list, o.row.id)
	}
	return list
}

// checkResults compares what was reported as settled with what was handled and with the database.
func (b *settlerBench) checkResults() {
	for id, s := range b.results {
		want := b.added[id].result
		if b.poison[id] {
			if s.result.Kind != dispatch.Retry || s.result.Delay != offenderDelay || !strings.Contains(s.result.Error, "invalid byte sequence") {
				b.t.Errorf("event %d, which was refused, is settled as %+v", id, s.result)
			}
		} else if s.result.Kind != want.Kind || s.result.Delay != want.Delay {
			b.t.Errorf("event %d is settled as %+v, want %+v", id, s.result, want)
		}
		r := b.db.record(id)
		if (s.result.Kind == dispatch.Published) != r.published || (s.result.Kind == dispatch.Retry) != (r.retryCount == 1) ||
			(s.result.Kind == dispatch.Dead) != (r.retryAt == deadLetter) {
			b.t.Errorf("event %d is settled as %s, the row is %+v", id, s.result.Kind, r)
		}
	}
	for id := range b.stubborn {
		if r := b.db.record(id); r.published || r.retryCount != 0 {
			b.t.Errorf("event %d cannot have been written: %+v", id, r)
		}
	}
}

// TestSettlerSettlesEveryOutcomeOnce adds outcomes at random times to a settler whose database is away, loses answers,
// and refuses some of them, and ends it before or after it is through.
func TestSettlerSettlesEveryOutcomeOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			const events = 12
			b := newSettlerBench(t, events)
			b.delay = time.Duration(below(20).Draw(t, "ms")) * time.Millisecond
			for range below(10).Draw(t, "faults") {
				b.faults = append(b.faults, []string{"", "away", "unknown", "unknown"}[below(4).Draw(t, "fault")])
			}
			for id := int64(1); id <= events; id++ {
				b.poison[id] = below(4).Draw(t, "poison") == 3
				if below(16).Draw(t, "stubborn") == 15 {
					b.stubborn[id] = true
				}
			}
			b.start()
			for _, id := range rapid.Permutation([]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}).Draw(t, "order") {
				b.handle(id, []dispatch.Kind{dispatch.Published, dispatch.Published, dispatch.Retry, dispatch.Dead}[below(4).Draw(t, "kind")])
				time.Sleep(time.Duration(below(30).Draw(t, "ms")) * time.Millisecond)
				synctest.Wait()
			}
			switch {
			case rapid.Bool().Draw(t, "end early"):
				b.end()
			case len(b.stubborn) > 0:
				time.Sleep(time.Minute) // longer than all faults and pauses
				synctest.Wait()
				b.end()
				if len(b.results) != events-len(b.stubborn) {
					t.Errorf("%d of %d events are settled, %d of them cannot be", len(b.results), events, len(b.stubborn))
				}
			default:
				b.complete()
				if len(b.results) != events {
					t.Errorf("%d of %d events are settled", len(b.results), events)
				}
			}
			b.checkResults()
			if b.left() != events-len(b.results) {
				t.Errorf("%d are left of %d, %d are settled", b.left(), events, len(b.results))
			}
			for _, o := range b.pending {
				if _, settled := b.results[o.row.id]; settled || o.result.Kind != b.added[o.row.id].result.Kind {
					t.Errorf("left is %+v, added was %+v, settled: %t", o.result, b.added[o.row.id].result, settled)
				}
			}
		})
	})
}

func TestSettler(t *testing.T) {
	t.Parallel()
	run := func(name string, test func(*testing.T, *settlerBench)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				test(t, newSettlerBench(t, 100))
			})
		})
	}
	run("the first outcome is written at once, and what comes meanwhile in one write", func(t *testing.T, b *settlerBench) {
		b.delay = time.Second
		b.start()
		for id := int64(100); id > 0; id-- {
			b.handle(id, dispatch.Published)
			if id == 100 {
				synctest.Wait()
			}
		}
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		if b.writes != 2 || len(b.results) != 100 {
			t.Errorf("%d writes, %d events settled", b.writes, len(b.results))
		}
		b.complete()
	})
	run("what is being written is not settled yet", func(t *testing.T, b *settlerBench) {
		b.delay = time.Second
		b.start()
		b.handle(1, dispatch.Published)
		synctest.Wait()
		if b.left() != 1 {
			t.Errorf("left %d", b.left())
		}
		b.complete()
		if b.left() != 0 {
			t.Errorf("left %d in the end", b.left())
		}
	})
	run("an outage is logged once, and its end", func(t *testing.T, b *settlerBench) {
		b.faults = slices.Repeat([]string{"away"}, 5)
		b.start()
		b.handle(1, dispatch.Published)
		time.Sleep(time.Minute)
		synctest.Wait()
		b.handle(2, dispatch.Published)
		b.complete()
		log := b.log.String()
		if strings.Count(log, "settle_failing") != 1 || strings.Count(log, "settle_recovered") != 1 {
			t.Error(log)
		}
	})
	run("what comes during an outage is counted as left and written with the rest after it", func(t *testing.T, b *settlerBench) {
		b.faults = slices.Repeat([]string{"away"}, 6)
		b.start()
		b.handle(2, dispatch.Published)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		b.handle(1, dispatch.Published)
		if b.left() != 2 {
			t.Errorf("left %d", b.left())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.writes != 7 || len(b.results) != 2 {
			t.Errorf("%d writes, %d events settled", b.writes, len(b.results))
		}
		b.complete()
	})
	run("the offender alone becomes a retry", func(t *testing.T, b *settlerBench) {
		b.delay = time.Second
		b.poison[42] = true
		b.start()
		b.handle(1, dispatch.Published)
		synctest.Wait()
		for id := int64(2); id <= 100; id++ {
			b.handle(id, dispatch.Published)
		}
		b.complete()
		b.checkResults()
		if len(b.results) != 100 || b.writes > 20 {
			t.Errorf("%d events settled with %d writes", len(b.results), b.writes)
		}
		if n := strings.Count(b.log.String(), "settle_refused"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
	run("an event of which the database takes nothing holds up no other, and is logged once", func(t *testing.T, b *settlerBench) {
		b.stubborn[1] = true
		b.start()
		b.handle(1, dispatch.Dead)
		time.Sleep(10 * time.Second)
		b.handle(2, dispatch.Published)
		synctest.Wait()
		if _, settled := b.results[2]; !settled {
			t.Error("event 2 is not settled")
		}
		b.end()
		if log := b.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "settle_failing") || !strings.Contains(log, "event 1:") {
			t.Error(log)
		}
		if b.left() != 1 {
			t.Errorf("left %d", b.left())
		}
	})
	run("an event that the hook refuses waits as it is, and holds up no other", func(t *testing.T, b *settlerBench) {
		b.unhooked.Store(7)
		b.delay = time.Second
		b.start()
		for id := range int64(10) {
			b.handle(id+1, dispatch.Published)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if r := b.db.record(7); len(b.results) != 9 || r.published || r.retryCount != 0 || b.left() != 1 || !strings.Contains(b.failure(), "invalid byte sequence") {
			t.Errorf("%d are settled, %d left, event 7 is %+v, failing: %s", len(b.results), b.left(), r, b.failure())
		}
		b.unhooked.Store(0)
		b.complete()
		b.checkResults()
		if len(b.results) != 10 || b.failure() != "" {
			t.Errorf("%d are settled, failing: %s", len(b.results), b.failure())
		}
	})
	run("a hook that fails for all is asked once for all of them", func(t *testing.T, b *settlerBench) {
		missing := &hookError{&pgconn.PgError{Code: "42P01", Message: "no such table"}}
		b.write = func(context.Context, []outcome) ([]settlement, error) { b.writes++; return nil, missing }
		for id := range int64(10) {
			b.handle(id+1, dispatch.Published)
		}
		b.start()
		synctest.Wait()
		b.end()
		if b.writes != 1 || b.left() != 10 {
			t.Errorf("%d writes, %d left", b.writes, b.left())
		}
	})
	run("what could not be written when it ends is left, as it was", func(t *testing.T, b *settlerBench) {
		b.faults = slices.Repeat([]string{"away"}, 1000)
		b.start()
		for id := range int64(5) {
			b.handle(id+1, dispatch.Dead)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		b.end()
		left := ids(b.pending)
		slices.Sort(left)
		if !slices.Equal(left, []int64{1, 2, 3, 4, 5}) || len(b.results) != 0 {
			t.Errorf("left %v, settled %v", left, slices.Collect(maps.Keys(b.results)))
		}
	})
	run("it ends at once where there is nothing to write", func(_ *testing.T, b *settlerBench) {
		b.start()
		b.complete()
	})
}
