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
	tried   func(owner bool) // told after each try that was answered
	state   string           // owner, standby or owner_unreachable: as it was logged
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
	inspect := time.Now().Add(inspectInterval)
	for {
		result, err := o.try(ctx, queries)
		switch {
		case err != nil:
			return 0, err
		case result.InRecovery:
			// The address may lead to the new primary by now: connect again rather than wait here.
			o.tried(false)
			return 0, errors.New("the server is a standby (in recovery): no worker can own an outbox there")
		case result.Owned:
			if _, err := queries.TuneSession(ctx); err != nil {
				return 0, fmt.Errorf("set up the owner's session: %w", err)
			}
			o.change("owner", nil)
			o.tried(true)
			return result.Pid, nil
		}
		o.change("standby", nil)
		o.tried(false)
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

// inspect looks at the owner's session. One that has been idle for long belongs to a process that is stopped.
func (o *ownership) inspect(ctx context.Context, queries *eventsdb.Queries) error {
	ctx, cancel := context.WithTimeout(ctx, 2*lease)
	defer cancel()
	owner, err := queries.OwnerSession(ctx, eventsdb.OwnerSessionParams{ApplicationPrefix: pgnames.OwnerApplication, LockKey: int64(pgnames.OwnerLock)})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // released just now
	}
	if err != nil {
		return fmt.Errorf("look at the owner's session: %w", err)
	}
	if owner.IdleS < stalledAfter.Seconds() {
		return nil
	}
	line := o.log.Warn().Int32("pid", owner.Pid).Str("user", owner.UserName).Str("application", owner.Application).
		Str("client", owner.Client).Float64("idle_s", owner.IdleS)
	if !owner.Ours {
		line.Msg("owner_stalled_and_not_ours") // an operator has to end it
		return nil
	}
	_, err = queries.TerminateSession(ctx, owner.Pid)
	line.Err(err).Msg("owner_stalled_terminated")
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
