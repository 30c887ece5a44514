package poller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

// ownership decides which of several workers fetches: the one whose dedicated session holds an advisory lock. The
// others are hot standbys. They try the lock, and never wait for it inside a statement.
type ownership struct {
	connect func(context.Context) (*pgx.Conn, error)
	nudge   chan struct{} // an announcement came in
	log     zerolog.Logger
	refused func() // told after each try that did not get the ownership
	state   string // owner, standby or owner_unreachable: as it was logged
	fault   fault  // as it was logged
}

// fault is what is wrong with the session that holds the lock; zero: nothing.
type fault struct {
	pid  int32
	name string
}

const (
	// notAWorker: the lock was left in a pooler's session, or somebody took it by hand. An operator has to end it.
	notAWorker = "lock_holder_is_not_a_worker"
	// stalledForeign is a stalled owner of another role. An operator has to end it.
	stalledForeign = "owner_stalled_and_not_ours"
	// stalledOurs is a stalled owner that a standby may end.
	stalledOurs = "owner_stalled_terminated"
)

// faultOf judges the session that holds the lock.
func faultOf(holder *eventsdb.OwnerSessionRow) fault {
	switch stalled := holder.IdleS >= stalledAfter.Seconds(); {
	case !holder.Worker:
		return fault{holder.Pid, notAWorker}
	case stalled && holder.Ours:
		return fault{holder.Pid, stalledOurs}
	case stalled:
		return fault{holder.Pid, stalledForeign}
	}
	return fault{}
}

const (
	// tryInterval is how often a standby tries; ± a fifth.
	tryInterval = 250 * time.Millisecond
	// inspectInterval is how often a standby looks at the owner's session.
	inspectInterval = 5 * time.Second
	// stalledAfter is how long an owner's session may be idle before its process counts as stopped: a
	// working one asks every second. A stopped process keeps its sockets alive.
	stalledAfter = 30 * time.Second
	// releaseTimeout bounds each step of giving ownership back.
	releaseTimeout = 3 * time.Second
)

// owned is a session that holds the lock.
type owned struct {
	conn *pgx.Conn
	pid  int32 // of the server's process
}

// acquire blocks until this worker owns the outbox; nil once ctx has ended.
func (o *ownership) acquire(ctx context.Context) *owned {
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		conn, err := o.connect(ctx)
		if err == nil {
			var pid int32
			if pid, err = o.stand(ctx, conn); err == nil {
				return &owned{conn, pid}
			}
			closeSession(ctx, conn)
			if o.state != "owner_unreachable" {
				pause.Reset()
			}
		}
		if ctx.Err() != nil {
			break
		}
		o.change("owner_unreachable", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause.NextBackOff()):
		}
	}
	return nil
}

// stand tries the lock until it is granted, or the connection fails.
func (o *ownership) stand(ctx context.Context, conn *pgx.Conn) (pid int32, err error) {
	queries := eventsdb.New(conn)
	var inspect time.Time // at once: who holds the lock may be no worker at all
	for {
		result, err := o.try(ctx, queries)
		switch {
		case err != nil:
			return 0, err
		case result.InRecovery:
			// The address may lead to the new primary by now: connect again rather than wait here.
			o.refused()
			return 0, errors.New("the server is a standby (in recovery): no worker can own an outbox there")
		case result.Owned:
			if _, err := queries.TuneSession(ctx); err != nil {
				return 0, fmt.Errorf("set up the owner's session: %w", err)
			}
			o.change("owner", nil)
			return result.Pid, nil
		}
		o.change("standby", nil)
		o.refused()
		if now := time.Now(); now.After(inspect) {
			inspect = now.Add(inspectInterval)
			if err := o.inspect(ctx, queries); err != nil {
				return 0, err
			}
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-o.nudge:
		case <-time.After(tryInterval*4/5 + rand.N(tryInterval*2/5)):
		}
	}
}

// change logs a change of state, once.
func (o *ownership) change(state string, err error) {
	if o.state == state {
		return
	}
	o.state = state
	if err != nil {
		o.log.Warn().Err(err).Msg(state)
	} else {
		o.log.Info().Msg(state)
	}
}

func (o *ownership) try(ctx context.Context, queries *eventsdb.Queries) (eventsdb.TryOwnRow, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*lease)
	defer cancel()
	result, err := queries.TryOwn(ctx, pgnames.OwnerLock)
	if err != nil {
		return result, fmt.Errorf("try to own the outbox: %w", err)
	}
	return result, nil
}

// inspect looks at the session that holds the lock, and logs what is wrong with it, once. One that has been idle for
// long belongs to a process that is stopped, and is ended.
func (o *ownership) inspect(ctx context.Context, queries *eventsdb.Queries) error {
	ctx, cancel := context.WithTimeout(ctx, 2*lease)
	defer cancel()
	holder, err := queries.OwnerSession(ctx, eventsdb.OwnerSessionParams{ApplicationPrefix: pgnames.OwnerApplication, LockKey: int64(pgnames.OwnerLock)})
	if errors.Is(err, pgx.ErrNoRows) {
		o.fault = fault{} // released just now
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the owner's session: %w", err)
	}
	found := faultOf(&holder)
	known := found == o.fault
	o.fault = found
	var ending error
	if found.name == stalledOurs {
		_, ending = queries.TerminateSession(ctx, holder.Pid)
	}
	if !known && found != (fault{}) {
		o.log.Warn().Int32("pid", holder.Pid).Str("user", holder.UserName).Str("application", holder.Application).
			Str("client", holder.Client).Float64("idle_s", holder.IdleS).Err(ending).Msg(found.name)
	}
	return nil
}

// release gives ownership back after the last settle, and tells the standbys.
func (o *ownership) release(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	defer closeSession(ctx, conn) // which releases the lock too
	queries := eventsdb.New(conn)
	if _, err := queries.ReleaseOwnership(ctx, pgnames.OwnerLock); err != nil {
		return
	}
	_ = queries.Notify(ctx, eventsdb.NotifyParams{Channel: pgnames.ReleaseChannel, Payload: ""}) // without it they find out within tryInterval
}

// closeSession closes a connection that is of no use any more, whatever that says.
func closeSession(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
