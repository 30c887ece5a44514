package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

// BenchmarkPublish measures what the outbox costs those who publish: see the package's documentation.
func BenchmarkPublish(b *testing.B) {
	for _, sessions := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
			var last measure.Published
			publishing(b, func(ctx context.Context, p *measure.Publishers) (m metrics, err error) {
				last, err = p.Publish(ctx, measure.Publish{Sessions: sessions, Slice: 2 * time.Second, Slices: 3})
				if err != nil {
					return nil, err
				}
				m = metrics{
					"always-commits/s": last.Always.PerSecond, "ratio-always": last.RatioAlways(),
					"p50-us": last.Gated.Commit.P50, "p95-us": last.Gated.Commit.P95, "p99-us": last.Gated.Commit.P99, "p99.9-us": last.Gated.Commit.P999,
					"floor-p50-us": last.Off.Commit.P50, "floor-p99-us": last.Off.Commit.P99,
					"always-p50-us": last.Always.Commit.P50, "always-p99-us": last.Always.Commit.P99,
				}
				m.compare("commits/s", last.Gated.PerSecond, last.Off.PerSecond)
				return m, nil
			})
			collected.Publish = append(collected.Publish, last)
		})
	}
}

// BenchmarkPublishBatch measures many events of one call: see the package's documentation.
func BenchmarkPublishBatch(b *testing.B) {
	for _, size := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			var last measure.Batched
			publishing(b, func(ctx context.Context, p *measure.Publishers) (m metrics, err error) {
				last, err = p.Batches(ctx, measure.Batches{Size: size, Slice: 500 * time.Millisecond, Slices: 3})
				if err != nil {
					return nil, err
				}
				m = metrics{}
				m.compare("events/s", last.Batch, last.Floor)
				return m, nil
			})
			collected.Batch = append(collected.Batch, last)
		})
	}
}

// publishing runs rounds, each with fresh databases and workers.
func publishing(b *testing.B, once func(context.Context, *measure.Publishers) (metrics, error)) {
	b.Helper()
	server, _ := shared.open(b)
	rounds(b, func(ctx context.Context) (m metrics, err error) {
		p, err := measure.NewPublishers(ctx, server)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		return once(ctx, p)
	})
}
