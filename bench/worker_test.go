package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	outbox "github.com/seed-9a365b49/outbox"
)

// startWorker runs a worker that has handle called for every event, until stop is called or the benchmark ends.
func startWorker(b *testing.B, url string, handle outbox.HandlerFunc) (w *outbox.Worker, stop func()) {
	b.Helper()
	w, err := outbox.NewWorker(outbox.Config{DatabaseURL: url})
	if err != nil {
		b.Fatal(err)
	}
	if err := w.Subscribe(outbox.AnyType, "bench", handle); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Errorf("worker: %v", err)
		}
	})
	b.Cleanup(stop)
	return w, stop
}

// waitIdle blocks until w has settled everything that it fetched, and has nothing to fetch: done says so.
func waitIdle(b *testing.B, w *outbox.Worker, done func() bool) {
	b.Helper()
	deadline := time.Now().Add(patience)
	for {
		if h := w.Health(); done() && h.Running && h.InFlight == 0 && h.Unsettled == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("the worker is not done: %+v", w.Health())
		}
		time.Sleep(200 * time.Microsecond)
	}
}
