package measure

import (
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	t.Parallel()

	t.Run("keeps three digits of every percentile", func(t *testing.T) {
		t.Parallel()
		h := newHistogram()
		for n := 2000; n > 0; n-- {
			h.record(time.Duration(n) * time.Millisecond)
		}
		s := h.summary()
		for name, v := range map[string]struct{ got, want float64 }{
			"p50": {s.P50, 1_000_000}, "p95": {s.P95, 1_900_000}, "p99": {s.P99, 1_980_000}, "p99.9": {s.P999, 1_998_000}, "max": {s.Max, 2_000_000},
		} {
			if v.got < v.want || v.got > v.want*1.001 {
				t.Errorf("%s is %v µs, want %v", name, v.got, v.want)
			}
		}
	})
	t.Run("takes what is out of range for the nearest", func(t *testing.T) {
		t.Parallel()
		h := newHistogram()
		h.record(-time.Second)
		h.record(time.Hour)
		if s := h.summary(); s.Count != 2 || s.P50 != 0 || s.Max < 600e6 || s.Max > 601e6 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("has a curve that ends where less than one sample is above", func(t *testing.T) {
		t.Parallel()
		h := newHistogram()
		for n := range 100 {
			h.record(time.Duration(n+1) * time.Millisecond)
		}
		curve := h.summary().Curve
		if first, last := curve[0], curve[len(curve)-1]; first != (Point{0, 1000}) || last.Percentile != 99 {
			t.Errorf("%+v", curve)
		}
		if empty := newHistogram().summary(); empty.Curve != nil || empty.Max != 0 {
			t.Errorf("%+v", empty)
		}
	})
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{9, 1, 2, 4}, 3}} {
		if got := Median(tt.values); got != tt.want {
			t.Errorf("the median of %v is %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	dues := schedule(1000, 10*time.Second, 1)
	if n := len(dues); n < 9_500 || n > 10_500 {
		t.Errorf("%d events in ten seconds", n)
	}
	even := 0
	for i, due := range dues[1:] {
		if due < dues[i] {
			t.Fatal("due times fall")
		}
		if gap := due - dues[i]; gap > 900*time.Microsecond && gap < 1100*time.Microsecond {
			even++
		}
	}
	if even > len(dues)/5 {
		t.Errorf("%d of %d events are a millisecond apart", even, len(dues))
	}
	if again := schedule(1000, 10*time.Second, 1); again[0] != dues[0] || len(again) != len(dues) {
		t.Error("the same seed makes another schedule")
	}
	if least := schedule(1, 0, 1); len(least) != 1 {
		t.Errorf("%d events of a slice without length", len(least))
	}
}
