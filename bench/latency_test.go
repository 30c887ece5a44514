package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

// steadyPublishers is how many sessions share the events of a steady arrival.
const steadyPublishers = 8

// BenchmarkLatency measures the time from commit to handler: see the package's documentation.
func BenchmarkLatency(b *testing.B) {
	one := func(ctx context.Context, p *measure.Pair) (measure.Latency, error) {
		return p.OneByOne(ctx, measure.OneByOne{Events: 1000}) // p99 then rests on ten samples
	}
	b.Run("idle", func(b *testing.B) { latency(b, measure.Notified, one) })
	b.Run("woken", func(b *testing.B) { latency(b, measure.Woken, one) })
	b.Run("polling", func(b *testing.B) {
		latency(b, measure.Polling, func(ctx context.Context, p *measure.Pair) (measure.Latency, error) {
			return p.OpenLoop(ctx, measure.OpenLoop{
				Rate: 50, Publishers: steadyPublishers, WarmUp: 3 * time.Second, Slice: 5 * time.Second, Slices: 1,
			})
		})
	})
	for _, rate := range []float64{100, 1000, 3000} {
		b.Run(fmt.Sprintf("steady=%.0f", rate), func(b *testing.B) {
			latency(b, measure.Notified, func(ctx context.Context, p *measure.Pair) (measure.Latency, error) {
				return p.OpenLoop(ctx, measure.OpenLoop{
					Rate: rate, Publishers: steadyPublishers, WarmUp: time.Second, Slice: 3 * time.Second, Slices: 3,
				})
			})
		})
	}
}

func latency(b *testing.B, wakes measure.Wakes, run func(context.Context, *measure.Pair) (measure.Latency, error)) {
	b.Helper()
	server, _ := shared.open(b)
	var last measure.Latency
	rounds(b, func(ctx context.Context) (m metrics, err error) {
		pair, err := measure.StartPair(ctx, server, wakes)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, pair.Close()) }()
		if last, err = run(ctx, pair); err != nil {
			return nil, err
		}
		worker, floor := last.Worker.Figure(), last.Floor.Figure()
		m = metrics{
			"p50-us": worker.P50, "p95-us": worker.P95, "p99-us": worker.P99, "p99.9-us": worker.P999, "max-us": worker.Max,
			"floor-p50-us": floor.P50, "floor-p95-us": floor.P95, "floor-p99-us": floor.P99, "floor-p99.9-us": floor.P999,
			"ratio-p50": last.RatioP50(), "ratio-p99": last.RatioP99(),
		}
		if last.Rate > 0 {
			m["commit-p50-us"], m["commit-p99-us"] = last.Worker.FromCommit.P50, last.Worker.FromCommit.P99
			m["unsent"], m["floor-missed"] = float64(last.Worker.Unsent), float64(last.Floor.Missed)
		}
		return m, nil
	})
	collected.Latency = append(collected.Latency, last)
}
