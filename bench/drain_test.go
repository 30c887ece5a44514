package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

// drains vary one thing at a time: the length of the backlog, the number of aggregates, the payload.
var drains = []measure.Drain{
	{Events: 10_000, Aggregates: 100_000, Bytes: 20, Repeat: 5},
	{Events: 100_000, Aggregates: 100_000, Bytes: 20, Repeat: 3},
	{Events: 1_000_000, Aggregates: 100_000, Bytes: 20},
	{Events: 100_000, Aggregates: 100, Bytes: 20},
	{Events: 100_000, Aggregates: 1, Bytes: 20},
	{Events: 10_000, Aggregates: 100_000, Bytes: 800, Repeat: 5},
	{Events: 100_000, Aggregates: 100_000, Bytes: 800, Repeat: 3},
	{Events: 100_000, Aggregates: 100, Bytes: 800},
	{Events: 20_000, Aggregates: 100_000, Bytes: 8192},
}

// hindered are drains of a table with many published events, while another session keeps PostgreSQL from cleaning up.
var hindered = []measure.HinderedDrain{
	{Drain: measure.Drain{Events: 100_000, Aggregates: 100_000, Bytes: 20}, Published: 1_000_000, Hindrance: measure.HeldSnapshot},
	{Drain: measure.Drain{Events: 100_000, Aggregates: 100_000, Bytes: 20}, Published: 1_000_000, Hindrance: measure.OpenWriter},
}

// BenchmarkDrain measures how fast a backlog is worked off: see the package's documentation.
func BenchmarkDrain(b *testing.B) {
	for _, d := range drains {
		b.Run(fmt.Sprintf("bytes=%d/aggregates=%d/events=%d", d.Bytes, d.Aggregates, d.Events), func(b *testing.B) { drain(b, d.Run) })
	}
	for _, d := range hindered {
		b.Run(fmt.Sprintf("published=%d/%s", d.Published, strings.ReplaceAll(string(d.Hindrance), " ", "-")), func(b *testing.B) { drain(b, d.Run) })
	}
}

func drain(b *testing.B, run func(context.Context, *measure.Server) (measure.Drained, error)) {
	b.Helper()
	server, _ := shared.open(b)
	var last measure.Drained
	rounds(b, func(ctx context.Context) (m metrics, err error) {
		if last, err = run(ctx, server); err != nil {
			return nil, err
		}
		m = metrics{}
		m.compare("events/s", last.Worker, last.Floor)
		if last.Hindrance != "" {
			m["free-events/s"], m["ratio-free"] = last.Free, last.RatioFree()
		}
		return m, nil
	})
	collected.Drain = append(collected.Drain, last)
}
