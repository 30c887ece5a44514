package bench

import (
	"context"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

// metrics are the figures of a round, by their units.
type metrics map[string]float64

// compare adds a figure, its floor, and the one divided by the other.
func (m metrics) compare(unit string, figure, floor float64) {
	m[unit], m["floor-"+unit], m["ratio"] = figure, floor, measure.Ratio(figure, floor)
}

// rounds runs a workload as often as the benchmark wants and reports the median of every figure. The duration of a round says
// nothing, and is not reported.
func rounds(b *testing.B, once func(context.Context) (metrics, error)) {
	b.Helper()
	all := make(map[string][]float64)
	for b.Loop() {
		round, err := once(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for unit, value := range round {
			all[unit] = append(all[unit], value)
		}
	}
	for unit, values := range all {
		b.ReportMetric(measure.Median(values), unit)
	}
	b.ReportMetric(0, "ns/op")
}
