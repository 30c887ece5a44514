package bench

import (
	"math"
	"slices"
	"testing"
	"time"
)

// samples are durations, of which percentiles are exact: all of them are kept.
type samples []time.Duration

// percentile returns the smallest sample that at least p percent of them do not exceed, in microseconds.
func (s samples) percentile(p float64) float64 {
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return float64(sorted[max(rank, 1)-1]) / float64(time.Microsecond)
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var s samples
	for n := 200; n > 0; n-- {
		s = append(s, time.Duration(n)*time.Millisecond)
	}
	for p, want := range map[float64]float64{0: 1_000, 50: 100_000, 99: 198_000, 99.9: 200_000, 100: 200_000} {
		if got := s.percentile(p); got != want {
			t.Errorf("percentile %v is %v µs, want %v", p, got, want)
		}
	}
}
