package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/migrations"
)

// consumer receives the events of a database of its own.
type consumer struct {
	db       *Database
	arrivals *arrivals
	wake     func()                      // what a publisher in the same process calls after a commit
	settled  func(context.Context) error // blocks until what has arrived is settled
	stop     func() error                // drops the database as well
}

// newWorkerConsumer starts a worker. woken has publishers call Worker.Wake after their commits.
func newWorkerConsumer(ctx context.Context, s *Server, mode migrations.NotifyMode, woken bool) (*consumer, error) {
	db, err := newDatabaseIn(ctx, s, mode)
	if err != nil {
		return nil, err
	}
	c := &consumer{db: db, arrivals: newArrivals(), wake: func() {}}
	w, err := startReadyWorker(ctx, db, func(_ context.Context, e *outbox.Event) error {
		c.arrivals.add(e.ID)
		return nil
	}, nil)
	if err != nil {
		return nil, errors.Join(err, db.Drop())
	}
	if woken {
		c.wake = w.Wake
	}
	c.settled = func(ctx context.Context) error { return w.idle(ctx, func() bool { return true }) }
	c.stop = func() error { return errors.Join(w.stop(), db.Drop()) }
	return c, nil
}

// newBareConsumer starts the floor: a session that is woken, fetches, and hands over to a handler. Its events stay unpublished.
func newBareConsumer(ctx context.Context, s *Server, mode migrations.NotifyMode, source wakeSource, wake func()) (*consumer, error) {
	db, err := newDatabaseIn(ctx, s, mode)
	if err != nil {
		return nil, err
	}
	conn, err := db.Connect(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Drop())
	}
	wait, err := source(ctx, conn)
	if err != nil {
		closeConn(ctx, conn)
		return nil, errors.Join(err, db.Drop())
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &consumer{
		db: db, arrivals: newArrivals(), wake: wake,
		settled: func(context.Context) error { return nil },
	}
	fetched := make(chan int64)
	var parts sync.WaitGroup
	var failed error
	parts.Go(func() {
		for id := range fetched {
			c.arrivals.add(id)
		}
	})
	parts.Go(func() {
		defer close(fetched)
		if err := consumeBarely(running, conn, wait, fetched); running.Err() == nil {
			failed = fmt.Errorf("floor: %w", err)
		}
	})
	c.stop = func() error {
		cancel()
		parts.Wait()
		closeConn(ctx, conn)
		return errors.Join(failed, db.Drop())
	}
	return c, nil
}

// newDatabaseIn makes a database whose notifications are in a mode.
func newDatabaseIn(ctx context.Context, s *Server, mode migrations.NotifyMode) (*Database, error) {
	db, err := s.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	if err := db.setNotify(ctx, mode); err != nil {
		return nil, errors.Join(err, db.Drop())
	}
	return db, nil
}
