package poller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestShutdown(t *testing.T) {
	t.Parallel()

	t.Run("running handlers finish and are settled, and nothing new starts", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insertMany(t, db.Pool, 10, 4)
		release := make(chan struct{})
		b := start(t, db, func(context.Context, *event.Event) error { <-release; return nil })
		b.waitCalls(4)
		stopped := make(chan error, 1)
		go func() { stopped <- b.stop() }()
		b.wait("the queues to be dropped", func() bool { return b.Stats().InFlight == 4 })
		close(release)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		b.waitRows(4, "published_at IS NOT NULL")
		if n := len(b.seen()); n != 4 {
			t.Errorf("%d calls, want 4", n)
		}
	})

	t.Run("a handler that outlives the grace is cut off, which consumes no attempt", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insert(t, db.Pool, 1)
		b := start(t, db, func(ctx context.Context, _ *event.Event) error { <-ctx.Done(); return ctx.Err() },
			func(c *Config) { c.ShutdownGrace = time.Millisecond })
		b.waitCalls(1)
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		b.waitRows(1, "published_at IS NULL AND retry_count = 0 AND next_retry_at IS NULL AND last_error IS NULL")
	})

	t.Run("a handler that ignores its context is left behind, and Run says so", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insert(t, db.Pool, 1)
		release := make(chan struct{})
		b := prepare(t, db, func(context.Context, *event.Event) error { <-release; return nil },
			func(c *Config) { c.ShutdownGrace = time.Millisecond })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		b.waitCalls(1)
		cancel()
		if err := <-ended; !errors.Is(err, ErrHandlersRemain) {
			t.Errorf("Run returned %v", err)
		}
		close(release)
		b.handlers.members.Wait()
	})
}
