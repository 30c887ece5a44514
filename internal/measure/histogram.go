package measure

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// longest is the greatest duration that a histogram tells from a greater one.
	longest = 10 * time.Minute
	// digits is how many significant decimal digits of a duration it keeps.
	digits = 3
)

// histogram counts durations in microseconds. It is not safe for concurrent use.
type histogram struct{ counts *hdrhistogram.Histogram }

func newHistogram() *histogram {
	return &histogram{hdrhistogram.New(1, longest.Microseconds(), digits)}
}

// record adds a duration. One that is negative counts as none, one beyond the longest as the longest.
func (h *histogram) record(d time.Duration) {
	d = min(max(d, 0), longest).Round(time.Microsecond)
	_ = h.counts.RecordValue(d.Microseconds()) // it is in range
}

// merge adds what another has counted.
func (h *histogram) merge(other *histogram) { h.counts.Merge(other.counts) }

// Summary is a distribution of durations. All are in microseconds.
type Summary struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_us"`
	P95   float64 `json:"p95_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p99_9_us"`
	Max   float64 `json:"max_us"`
	// Curve is the distribution for a chart, by rising percentile.
	Curve []Point `json:"curve"`
}

// Point is a percentile, and the microseconds that so many durations do not exceed.
type Point struct {
	Percentile float64 `json:"percentile"`
	Micros     float64 `json:"us"`
}

// curvePercentiles are those of a curve besides the least of all; one that fewer than one duration lies above is left out.
var curvePercentiles = []float64{10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999}

func (h *histogram) summary() Summary {
	at := func(p float64) float64 { return float64(h.counts.ValueAtPercentile(p)) }
	s := Summary{Count: h.counts.TotalCount(), P50: at(50), P95: at(95), P99: at(99), P999: at(99.9), Max: float64(h.counts.Max())}
	if s.Count > 0 {
		s.Curve = append(s.Curve, Point{0, float64(h.counts.Min())})
	}
	for _, p := range curvePercentiles {
		if float64(s.Count)*(100-p) >= 100 {
			s.Curve = append(s.Curve, Point{p, at(p)})
		}
	}
	return s
}

// Ratio is a ÷ b, 0 where there is nothing to divide by.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
