package poller

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2024, 5, 17, 12, 0, 0, 0, time.UTC)

// sweepRun sweeps slices of which each takes what cost says, and the loop begins each so long after it was due.
type sweepRun struct {
	sweep
	now time.Time
}

func (r *sweepRun) slice(watermark int64, late time.Duration, cost func(after, upTo int64) time.Duration) (after, upTo int64, took time.Duration, complete bool) {
	if r.now.Before(r.next) {
		r.now = r.next
	}
	r.now = r.now.Add(late)
	began := r.now
	after, upTo = r.sweep.slice(watermark, began)
	took = cost(after, upTo)
	r.now = began.Add(took)
	complete = r.swept(upTo, watermark, took, r.now)
	return after, upTo, took, complete
}

// TestSweepWalks checks that walks cover every id up to the watermark, whatever slices cost, and take their share of
// the time and no more.
func TestSweepWalks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := sweepRun{now: noon}
		anywhere := rapid.OneOf(rapid.Int64Range(0, 200_000), rapid.Int64Range(math.MaxInt64-200_000, math.MaxInt64), rapid.Int64())
		watermark := anywhere.Draw(t, "watermark")
		covered, walkBegan := int64(0), time.Time{}
		for range 60 {
			if rapid.IntRange(0, 3).Draw(t, "moves") == 0 {
				watermark = anywhere.Draw(t, "watermark")
			}
			after, upTo, took, complete := r.slice(watermark, time.Duration(rapid.IntRange(0, 100).Draw(t, "late"))*time.Millisecond, func(int64, int64) time.Duration {
				return time.Duration(rapid.IntRange(0, 200_000).Draw(t, "µs")) * time.Microsecond
			})
			if after != covered || upTo < after || upTo > max(after, watermark) {
				t.Fatalf("slice (%d, %d] after %d, watermark %d", after, upTo, covered, watermark)
			}
			if covered == 0 {
				walkBegan = r.now.Add(-took)
			}
			if rest := r.next.Sub(r.now); rest < (sweepRest-1)*took {
				t.Fatalf("rests %s after a slice of %s", rest, took)
			}
			if complete != (upTo >= watermark) {
				t.Fatalf("complete %t at %d, watermark %d", complete, upTo, watermark)
			}
			covered = upTo
			if !complete {
				continue
			}
			covered = 0
			if next := r.next.Sub(walkBegan); next < sweepInterval {
				t.Fatalf("the next walk begins %s after the last", next)
			}
		}
	})
}

func TestSweep(t *testing.T) {
	t.Parallel()
	perID := func(d time.Duration) func(int64, int64) time.Duration {
		return func(after, upTo int64) time.Duration { return time.Duration(upTo-after) * d }
	}
	walk := func(r *sweepRun, watermark int64, cost func(int64, int64) time.Duration) (took time.Duration, slices int) {
		for {
			_, _, t, complete := r.slice(watermark, 0, cost)
			took += t
			slices++
			if complete {
				return took, slices
			}
		}
	}
	t.Run("a short walk begins every second", func(t *testing.T) {
		t.Parallel()
		r := sweepRun{now: noon}
		for i := range 5 {
			if want := noon.Add(time.Duration(i) * time.Second); i > 0 && !r.next.Equal(want) {
				t.Fatalf("walk %d begins at %s", i, r.next)
			}
			walk(&r, 100_000, perID(10*time.Nanosecond))
		}
	})
	t.Run("a long walk begins every 20 times what it took", func(t *testing.T) {
		t.Parallel()
		r := sweepRun{now: noon}
		for range 3 {
			r.slice(0, 0, perID(0)) // begins anew
			began := r.next
			took, slices := walk(&r, 1_000_000, perID(time.Microsecond))
			if period := r.next.Sub(began); period != sweepRest*took || slices < 10 {
				t.Errorf("took %s in %d slices, the next begins %s after it began", took, slices, period)
			}
		}
	})
	t.Run("slices grow and shrink to a few milliseconds", func(t *testing.T) {
		t.Parallel()
		for _, cost := range []time.Duration{100 * time.Nanosecond, time.Microsecond, 3 * time.Microsecond} {
			r := sweepRun{now: noon}
			var took time.Duration
			for range 20 {
				_, _, took, _ = r.slice(1<<40, 0, perID(cost))
			}
			if took < sweepSliceGoal/2 || took > 2*sweepSliceGoal {
				t.Errorf("at %s an id a slice takes %s", cost, took)
			}
		}
	})
	t.Run("slices do not shrink below the least", func(t *testing.T) {
		t.Parallel()
		r := sweepRun{now: noon}
		for range 20 {
			r.slice(1<<40, 0, perID(time.Millisecond))
		}
		if after, upTo, _, _ := r.slice(1<<40, 0, perID(time.Millisecond)); upTo-after != sweepMinSpan {
			t.Errorf("%d ids", upTo-after)
		}
	})
	t.Run("one expensive slice is enough to shrink", func(t *testing.T) {
		t.Parallel()
		r := sweepRun{now: noon}
		for range 60 {
			walk(&r, 10_000_000, perID(0)) // idle for a minute: nothing unpublished anywhere
		}
		r.slice(10_000_000, 0, perID(time.Microsecond)) // a backlog has come
		if _, _, took, _ := r.slice(10_000_000, 0, perID(time.Microsecond)); took > 2*sweepSliceGoal {
			t.Errorf("the second slice still takes %s", took)
		}
	})
	t.Run("a watermark that went back ends the walk", func(t *testing.T) {
		t.Parallel()
		r := sweepRun{now: noon}
		r.slice(50_000, 0, perID(time.Microsecond))
		after, upTo, _, complete := r.slice(5, 0, perID(time.Microsecond))
		if after != sweepFirstSpan || upTo != after || !complete {
			t.Errorf("slice (%d, %d], complete: %t", after, upTo, complete)
		}
	})
	t.Run("it is the index that costs, not the numbers in it", func(t *testing.T) {
		t.Parallel()
		for _, watermark := range []int64{1 << 40, 1 << 60, math.MaxInt64 - 1, math.MaxInt64} {
			r := sweepRun{now: noon}
			for range 3 {
				_, slices := walk(&r, watermark, perID(0))
				if slices > 64 {
					t.Errorf("%d slices up to %d", slices, watermark)
				}
			}
			if _, slices := walk(&r, watermark, perID(0)); slices > 2 {
				t.Errorf("%d slices up to %d by a later walk", slices, watermark)
			}
		}
	})
	t.Run("no range is longer than the span, also from below zero", func(t *testing.T) {
		t.Parallel()
		s := sweep{position: -5, span: 1000}
		if after, upTo := s.slice(math.MaxInt64-1, noon); after != -5 || upTo != 995 {
			t.Errorf("slice (%d, %d]", after, upTo)
		}
	})
	t.Run("without a watermark it is over at once", func(t *testing.T) {
		t.Parallel()
		r := sweepRun{now: noon}
		if after, upTo, _, complete := r.slice(0, 0, perID(1)); after != 0 || upTo != 0 || !complete {
			t.Errorf("slice (%d, %d], complete: %t", after, upTo, complete)
		}
	})
}
