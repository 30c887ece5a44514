package poller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

// GateState says whether publishers announce their events: see migrations/00009_gate.sql.
type GateState int32

const (
	// GateOpen: they need not, and the worker looks every few milliseconds.
	GateOpen GateState = iota
	// GateClosing: those that begin do, those that are under way need not. The worker looks, at first every few
	// milliseconds.
	GateClosing
	// GateClosed: all do. The worker sleeps until one does.
	GateClosed
	// GateLost: the gate's session is not connected. They need not, and the worker looks.
	GateLost
)

// gate opens and closes the gate of a spell of ownership, by an advisory lock that its own session holds exclusively while
// it is closed. Not the owner's session: closing waits for publishers. It moves through GateState's states:
//
//	open                     at first, and whenever no one sleeps
//	lost → closing or open   connected
//	open ⇄ closing           as the loop wants
//	closing → closed         the lock was granted: no publisher is silent any more
//	closed → open            as the loop wants
//	any → lost               the session failed, on this side or the server's
//
// While it is closed or open a read is pending on the session, so that its end is known at once: it ends the lock
// too, and publishers fall silent.
type gate struct {
	connect func(context.Context) (*pgx.Conn, error)
	wake    func() // has the loop fetch
	look    func() // has the loop look at the gate
	log     zerolog.Logger

	state  atomic.Int32
	turned atomic.Bool // the state, or who may be silent, has changed since the loop asked

	mu        sync.Mutex
	open      bool               // wanted
	doubted   bool               // a look found what nobody announced
	interrupt context.CancelFunc // of the pending read
}

const (
	// gateTimeout bounds an answer of the gate's session; waiting for publishers takes 200 ms of it at most.
	gateTimeout = 2 * time.Second
	// gateFirstDelay and gateMaxDelay bound the pause before the session is connected anew.
	gateFirstDelay = 50 * time.Millisecond
	gateMaxDelay   = 2 * time.Second
)

func (g *gate) now() GateState { return GateState(g.state.Load()) }

// closed reports whether every event that is committed from now on is announced.
func (g *gate) closed() bool { return g.now() == GateClosed }

// want says whether the gate should be open. It never blocks.
func (g *gate) want(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open != open {
		g.open = open
		g.interruptRead()
	}
}

// doubt has the session prove that it is alive, and the lock with it. It never blocks.
func (g *gate) doubt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.doubted = true
	g.interruptRead()
}

func (g *gate) interruptRead() {
	if g.interrupt != nil {
		g.interrupt()
	}
}

// run keeps the gate until ctx ends.
func (g *gate) run(ctx context.Context) {
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(gateFirstDelay),
		backoff.WithMaxInterval(gateMaxDelay), backoff.WithMaxElapsedTime(0))
	for {
		conn, err := g.connect(ctx)
		if err == nil {
			if g.now() == GateLost {
				g.log.Info().Msg("gate_recovered")
			}
			pause.Reset()
			err = g.keep(ctx, conn)
		}
		g.lost(ctx, err)
		if conn != nil {
			closeSession(ctx, conn)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// lost takes in that there is no session, before anything else: publishers may be silent since it ended.
func (g *gate) lost(ctx context.Context, err error) {
	if g.set(GateLost) && ctx.Err() == nil {
		g.log.Warn().Err(err).Msg("gate_lost")
	}
	g.wake()
}

// keep opens and closes the gate as it is wanted, until the session fails or ctx ends.
func (g *gate) keep(ctx context.Context, conn *pgx.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.PgConn().Conn().SetDeadline(epoch) })
	defer stop()
	queries := eventsdb.New(conn)
	for ctx.Err() == nil {
		var err error
		switch open, closed, doubted := g.next(); {
		case doubted:
			err = g.ask(func(ctx context.Context) error { _, err := queries.BackendPID(ctx); return err })
		case open && closed:
			g.set(GateOpen) // before publishers fall silent
			err = g.ask(func(ctx context.Context) error { _, err := queries.OpenGate(ctx, pgnames.GateLock); return err })
		case !open && !closed:
			err = g.close(queries)
		default:
			err = g.watch(ctx, conn)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// next returns what is wanted and what is.
func (g *gate) next() (open, closed, doubted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	doubted, g.doubted = g.doubted, false
	return g.open, g.closed(), doubted
}

// close waits for the silent publishers for one slice of time.
func (g *gate) close(queries *eventsdb.Queries) error {
	g.set(GateClosing) // for each slice: between two of them publishers can have begun in silence
	return g.ask(func(ctx context.Context) error {
		closed, err := queries.CloseGate(ctx)
		if err == nil && closed {
			g.set(GateClosed)
			g.wake() // what the last silent ones have committed
		}
		return err
	})
}

// watch reads from the session until something else is wanted. Nothing ever comes.
func (g *gate) watch(ctx context.Context, conn *pgx.Conn) error {
	open := !g.closed()
	if open {
		g.set(GateOpen)
	}
	reading, interrupt := context.WithCancel(ctx)
	defer interrupt()
	g.mu.Lock()
	if g.open != open || g.doubted {
		interrupt()
	}
	g.interrupt = interrupt
	g.mu.Unlock()
	_, err := conn.WaitForNotification(reading)
	g.mu.Lock()
	g.interrupt = nil
	g.mu.Unlock()
	if err == nil || reading.Err() != nil && !conn.IsClosed() {
		return nil // a notification would do no harm: nobody listens here
	}
	return fmt.Errorf("watch the gate's session: %w", err)
}

// ask runs one statement. It is not given the context of the spell, for whose end keep closes the socket.
func (g *gate) ask(statement func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), gateTimeout, errGateSilent)
	defer cancel()
	if err := statement(ctx); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

var errGateSilent = fmt.Errorf("the server has not answered on the gate's session within %s", gateTimeout)

// set changes the state, tells the loop, and reports whether it is another one.
func (g *gate) set(s GateState) (changed bool) {
	changed = GateState(g.state.Swap(int32(s))) != s
	if changed || s == GateClosing {
		g.turned.Store(true)
		g.look()
	}
	return changed
}
