package peers

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// publishers is how many sessions publish, each one transaction after another.
	publishers = 16
	// publishersFor is how long they are measured, after publishersWarmUp.
	publishersFor    = 5 * time.Second
	publishersWarmUp = time.Second
)

// BenchmarkPublishers measures what publishing costs while a consumer is at work: see the package's documentation.
func BenchmarkPublishers(b *testing.B) { takeTurns(b, measurePublishers) }

func measurePublishers(b *testing.B, c candidate) {
	bed := newBed(b, c)
	from := time.Now().Add(publishersWarmUp)
	to := from.Add(publishersFor)
	var handled, next atomic.Int64
	stop := bed.consume(b, func(string) {
		if now := time.Now(); now.After(from) && now.Before(to) {
			handled.Add(1)
		}
	})
	took := make([][]time.Duration, publishers)
	inTurns(b, bed, publishers, func(ctx context.Context, conn *pgx.Conn, session int) error {
		for {
			began := time.Now()
			if began.After(to) {
				return nil
			}
			if err := bed.commit(ctx, conn, int(next.Add(1))); err != nil {
				return err
			}
			if began.After(from) {
				took[session] = append(took[session], time.Since(began))
			}
		}
	})
	stop()
	l := newLatencies()
	for _, durations := range took {
		for _, d := range durations {
			l.add(b, d)
		}
	}
	b.ReportMetric(float64(l.h.TotalCount())/publishersFor.Seconds(), "commits/s")
	b.ReportMetric(float64(handled.Load())/publishersFor.Seconds(), "handled/s")
	l.report(b, "commit-")
}
