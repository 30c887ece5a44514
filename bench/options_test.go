package bench

import (
	"context"
	"testing"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/audit"
	"github.com/seed-9a365b49/outbox/internal/measure"
	outboxmetrics "github.com/seed-9a365b49/outbox/metrics"
)

var options = []measure.Option{
	{Name: "audit", Set: func(ctx context.Context, c *outbox.Config) error {
		c.Audit = true
		_, err := audit.Create(ctx, c.Pool)
		return err
	}},
	{Name: "metrics", Set: func(_ context.Context, c *outbox.Config) error {
		c.Observer = outboxmetrics.New().Observer()
		return nil
	}},
}

// BenchmarkOptions measures what it costs the worker to do more than deliver: see the package's documentation.
func BenchmarkOptions(b *testing.B) {
	for _, o := range options {
		b.Run(o.Name, func(b *testing.B) {
			server, _ := shared.open(b)
			d := measure.OptionDrain{Drain: measure.Drain{Events: 100_000, Aggregates: 100_000, Bytes: 20, Repeat: 3}, Option: o}
			var last measure.OptionDrained
			rounds(b, func(ctx context.Context) (m metrics, err error) {
				if last, err = d.Run(ctx, server); err != nil {
					return nil, err
				}
				m = metrics{}
				m.compare("events/s", last.With, last.Without)
				return m, nil
			})
			collected.Options = append(collected.Options, last)
		})
	}
}
