package metrics

import (
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox"
)

// An embedder who has the backlog counted every five minutes wants to see it in between.
func TestStale(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]time.Duration{
		time.Second:                  time.Minute,
		outbox.DefaultSampleInterval: time.Minute,
		5 * time.Minute:              20 * time.Minute,
	} {
		m := New()
		observer := m.Observer()
		observer.SampleInterval = interval
		if _, err := outbox.NewWorker(outbox.Config{DatabaseURL: "postgres://localhost/orders", Observer: observer}); err != nil {
			t.Fatal(err)
		}
		if got := stale(m.worker.Load().SampleInterval()); got != want {
			t.Errorf("counted every %s, a sample is stale after %s, want %s", interval, got, want)
		}
	}
}
