package demo

import (
	"slices"
	"time"
)

// sampleSize bounds the memory of a demo that runs all day: at 20 events a second it holds more than eight minutes.
const sampleSize = 10_000

// sample holds the last durations of a series.
type sample struct {
	values []time.Duration
	oldest int // the position that the next value takes, once full
}

func (s *sample) add(d time.Duration) {
	if len(s.values) < sampleSize {
		s.values = append(s.values, d)
		return
	}
	s.values[s.oldest] = d
	s.oldest = (s.oldest + 1) % sampleSize
}

// copy returns the durations in no particular order.
func (s *sample) copy() []time.Duration { return slices.Clone(s.values) }

// percentiles are those of a sample; all 0 for an empty one.
type percentiles struct {
	N                  int
	P50, P95, P99, Max time.Duration
}

// percentilesOf sorts values. It takes the nearest rank: every percentile is one of the values.
func percentilesOf(values []time.Duration) percentiles {
	n := len(values)
	if n == 0 {
		return percentiles{}
	}
	slices.Sort(values)
	rank := func(percent int) time.Duration { return values[(n*percent+99)/100-1] }
	return percentiles{N: n, P50: rank(50), P95: rank(95), P99: rank(99), Max: values[n-1]}
}
