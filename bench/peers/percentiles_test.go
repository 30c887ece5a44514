package peers

import (
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latencies is a distribution of durations, to three significant digits.
type latencies struct{ h *hdrhistogram.Histogram }

// newLatencies holds durations from a microsecond to ten minutes.
func newLatencies() latencies {
	return latencies{hdrhistogram.New(int64(time.Microsecond), int64(10*time.Minute), 3)}
}

func (l latencies) add(tb testing.TB, d time.Duration) {
	tb.Helper()
	if err := l.h.RecordValue(int64(max(d, time.Microsecond))); err != nil {
		tb.Fatal(err)
	}
}

// report adds the percentiles in microseconds to the results, with a prefix to their names. One that less than one sample
// lies beyond is left out: it would be the greatest sample by another name.
func (l latencies) report(b *testing.B, prefix string) {
	for _, p := range []struct {
		name    string
		percent float64
	}{{"p50", 50}, {"p95", 95}, {"p99", 99}, {"p99.9", 99.9}} {
		if float64(l.h.TotalCount())*(100-p.percent) >= 100 {
			b.ReportMetric(float64(l.h.ValueAtPercentile(p.percent))/float64(time.Microsecond), prefix+p.name+"-us")
		}
	}
}
