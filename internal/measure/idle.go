package measure

import (
	"context"
	"errors"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox"
)

// IdleWorker is a measurement of what a worker costs that has nothing to do. Nothing else may go on in the process meanwhile.
type IdleWorker struct {
	Settle time.Duration // before the measurement: the start is not part of it
	Window time.Duration
}

// Idled is the result of an [IdleWorker].
type Idled struct {
	// Queries a second are the statements that the worker sends, counted where it sends them.
	Queries float64 `json:"queries_per_s"`
	// CPU is the share of one core that the process took; negative where the system does not tell.
	CPU float64 `json:"cpu_share"`
}

// Run measures.
func (i IdleWorker) Run(ctx context.Context, s *Server) (result Idled, err error) {
	db, err := s.CreateDatabase(ctx)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, db.Drop()) }()
	var statements statementCounter
	w, err := startReadyWorker(ctx, db, func(context.Context, *outbox.Event) error { return nil }, &statements)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	debug.FreeOSMemory() // else what earlier measurements left is cleaned up within the window
	if err := wait(ctx, i.Settle); err != nil {
		return result, err
	}
	began, before, cpuBefore := time.Now(), statements.n.Load(), processTime()
	if err := wait(ctx, i.Window); err != nil {
		return result, err
	}
	took := time.Since(began).Seconds()
	result.Queries = float64(statements.n.Load()-before) / took
	result.CPU = -1
	if cpuBefore >= 0 {
		result.CPU = (processTime() - cpuBefore).Seconds() / took
	}
	return result, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// statementCounter counts the statements that sessions begin.
type statementCounter struct{ n atomic.Int64 }

func (c *statementCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *statementCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	c.n.Add(int64(data.Batch.Len()))
	return ctx
}

func (c *statementCounter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (c *statementCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
