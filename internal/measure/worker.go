package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox"
)

const (
	// patience bounds any wait for a worker.
	patience = 5 * time.Minute
	// lookEvery is how often a worker is asked whether it is done.
	lookEvery = 200 * time.Microsecond
)

// worker is an outbox.Worker with the defaults of a service, on a pool of its own.
type worker struct {
	*outbox.Worker
	pool   *pgxpool.Pool
	cancel context.CancelFunc
	ended  chan struct{} // closed when Run has returned err
	err    error
}

// Option is something that a worker can do beside delivering.
type Option struct {
	Name string
	// Set prepares the database, whose pool is c.Pool, and the worker's configuration. It is called for each worker.
	Set func(ctx context.Context, c *outbox.Config) error
}

// startWorker has handle called for every event, until the worker is stopped. tracer sees its statements, if there is one.
func startWorker(ctx context.Context, db *Database, handle outbox.HandlerFunc, tracer pgx.QueryTracer, options ...Option) (*worker, error) {
	config := db.pool.Config()
	config.MaxConns = workerConnections
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("start the worker: %w", err)
	}
	runner, err := newWorker(ctx, outbox.Config{Pool: pool}, options)
	if err == nil {
		err = runner.Subscribe(outbox.AnyType, "bench", handle)
	}
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("start the worker: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &worker{Worker: runner, pool: pool, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		w.err = runner.Run(running)
	}()
	return w, nil
}

func newWorker(ctx context.Context, config outbox.Config, options []Option) (*outbox.Worker, error) {
	for _, o := range options {
		if err := o.Set(ctx, &config); err != nil {
			return nil, fmt.Errorf("set %s: %w", o.Name, err)
		}
	}
	return outbox.NewWorker(config)
}

// startReadyWorker is startWorker, and waits until the worker would be notified of an event.
func startReadyWorker(ctx context.Context, db *Database, handle outbox.HandlerFunc, tracer pgx.QueryTracer) (*worker, error) {
	w, err := startWorker(ctx, db, handle, tracer)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.Ready():
		return w, nil
	case <-w.ended:
		err = w.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(fmt.Errorf("start the worker: %w", err), w.stop())
}

// stop lets handlers finish, settles, and returns how the worker ended.
func (w *worker) stop() error {
	w.cancel()
	<-w.ended
	w.pool.Close()
	return w.err
}

// idle blocks until the worker has settled everything that it fetched, and done says that it has fetched everything.
func (w *worker) idle(ctx context.Context, done func() bool) error {
	return w.until(ctx, func() bool {
		h := w.Health()
		return done() && h.Running && h.InFlight == 0 && h.Unsettled == 0
	})
}

// until asks again and again.
func (w *worker) until(ctx context.Context, done func() bool) error {
	deadline := time.Now().Add(patience)
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.ended:
			return fmt.Errorf("the worker has ended: %w", w.err)
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the worker is not done after %s: %+v", patience, w.Health())
		}
		time.Sleep(lookEvery)
	}
	return nil
}
