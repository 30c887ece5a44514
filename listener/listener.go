package listener

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"
)

const (
	// firstDelay and maxDelay bound the pause before a reconnect, each ± half of it, so that the
	// listeners of one database do not come back in step: 50–150 ms at first, 1–3 s in the end.
	firstDelay = 100 * time.Millisecond
	maxDelay   = 2 * time.Second

	// pgxlistenDelay is pgxlisten's own fixed pause. The pause that matters is in connect, but
	// pgxlisten takes 0 for one minute and spins on a negative one.
	pgxlistenDelay = time.Millisecond

	// sendTimeout bounds the sending of one probe. It is longer than the wait for its echo,
	// which starts only after it: a pool that is busy for a moment is not a fault.
	sendTimeout = 5 * time.Second
)

// Listener keeps a LISTEN session and calls the handlers of its channels. Make one with
// [New] and start it with [Listener.Run]. The other methods can be called at any time,
// from any goroutine, also from the handlers and from OnChange.
type Listener struct {
	cfg     Config
	id      string        // marks this listener's probes
	running atomic.Bool   // Run has been called
	kick    chan struct{} // the machine has changed: watch is to look at it

	mu      sync.Mutex
	machine machine
	conn    *pgx.Conn // the newest session

	// Used by the goroutine of pgxlisten alone.
	pause    *backoff.ExponentialBackOff
	tried    bool // Connect has been called before
	unlisted int  // channels of this session on which LISTEN has not been answered yet
}

// New returns a listener for cfg. It does not connect. The error names every field of
// cfg that is wrong.
func New(cfg Config) (*Listener, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("listener config: %w", err)
	}
	cfg = cfg.withDefaults()
	return &Listener{
		cfg:  cfg,
		id:   rand.Text(),
		kick: make(chan struct{}, 1),
		machine: machine{
			timing: timing{listen: cfg.ConnectTimeout, interval: cfg.ProbeInterval, echo: cfg.ProbeTimeout},
			reason: "starting",
		},
		pause: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(firstDelay),
			backoff.WithMaxInterval(maxDelay),
			backoff.WithMultiplier(2),
			backoff.WithRandomizationFactor(0.5),
			backoff.WithMaxElapsedTime(0), // never give up
		),
	}, nil
}

// Run listens until ctx ends, and then returns nil. Nothing else ends it: an unreachable
// server, a wrong password and a missing database are outages, told by [Listener.State]
// and the log. It can be called once.
func (l *Listener) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return errors.New("listener: Run was called before")
	}
	watchCtx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { l.watch(watchCtx) })

	err := l.sessions().Listen(ctx)

	stop()
	watching.Wait()
	l.update(func(m *machine, _ time.Time) { m.stopped() })
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("listen: %w", err)
}

// State returns what the listener knows about itself. It is cheap.
func (l *Listener) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.machine.state()
}

// Healthy tells whether notifications are known to arrive: see [State].
func (l *Listener) Healthy() bool { return l.State().Healthy }

// Suspect casts doubt on a healthy listener: its caller has found work that no
// notification announced. The listener is not healthy from now on, sends a probe at once,
// and is healthy again when that comes back; if it does not, the listener is degraded and
// reconnects. Only then is anything logged, as a poll can be faster than a notification.
func (l *Listener) Suspect(reason string) {
	l.update(func(m *machine, now time.Time) { m.suspect(reason, now) })
}

// watch tells changes, sends probes and closes sessions that do not answer.
func (l *Listener) watch(ctx context.Context) {
	var sending sync.WaitGroup
	defer sending.Wait()
	abandon := func() {}
	defer func() { abandon() }()

	for {
		next := l.tick()
		for _, c := range next.changes {
			l.tell(c)
		}
		switch next.action {
		case sendProbe:
			abandon() // the probe of an earlier session, if its sending still hangs
			sendCtx, cancel := context.WithTimeout(ctx, sendTimeout)
			abandon = cancel
			sending.Go(func() { l.sendProbe(sendCtx, next.seq) })
		case closeSession:
			disconnect(next.conn)
		case nothing:
		}

		var due <-chan time.Time
		if !next.due.IsZero() {
			due = time.After(time.Until(next.due))
		}
		select {
		case <-ctx.Done():
			return
		case <-l.kick:
		case <-due:
		}
	}
}

// todo is what the machine wants done, and when to look at it again.
type todo struct {
	action  action
	seq     uint64    // of the probe to send
	conn    *pgx.Conn // to close
	changes []change
	due     time.Time
}

func (l *Listener) tick() todo {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.machine
	// tick comes first: what it does shows in the rest.
	act := m.tick(time.Now())
	return todo{action: act, seq: m.seq, conn: l.conn, changes: m.takeChanges(), due: m.due}
}

// update changes the machine and makes watch look at it.
func (l *Listener) update(f func(m *machine, now time.Time)) {
	l.mu.Lock()
	f(&l.machine, time.Now())
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

func (l *Listener) tell(c change) {
	if c.state.Degraded {
		l.cfg.Log.Warn().Str("reason", c.state.Reason).Int64("reconnects", c.state.Reconnects).Msg("listener degraded")
	} else {
		l.cfg.Log.Info().Int64("reconnects", c.state.Reconnects).Int64("down_for_ms", c.downFor.Milliseconds()).Msg("listener healthy")
	}
	if !c.repeated {
		l.cfg.OnChange(c.state)
	}
}

func (l *Listener) sendProbe(ctx context.Context, seq uint64) {
	err := l.cfg.SendProbe(ctx, l.id+":"+strconv.FormatUint(seq, 10))
	l.update(func(m *machine, now time.Time) {
		if err != nil {
			m.unsent(seq, unsent(err), now)
		} else {
			m.sent(seq, now)
		}
	})
}

// disconnect makes the session's pending read fail, whereupon pgxlisten closes the socket
// and reconnects. A deadline and not Close, because pgx answers a read on a closed socket by
// dialling a cancel request, which a silent peer then holds for 15 s; after a timeout it
// simply closes. Both are safe to call while another goroutine reads.
func disconnect(conn *pgx.Conn) {
	// An error means that the socket is closed already.
	_ = conn.PgConn().Conn().SetDeadline(time.Unix(1, 0))
}

// sessions returns the pgxlisten listener whose callbacks drive the machine. Its
// goroutine makes all the calls below.
func (l *Listener) sessions() *pgxlisten.Listener {
	s := &pgxlisten.Listener{Connect: l.connect, LogError: l.sessionError, ReconnectDelay: pgxlistenDelay}
	for channel, wake := range l.cfg.Handlers {
		s.Handle(channel, &wakeHandler{listener: l, channel: channel, wake: wake})
	}
	s.Handle(l.cfg.ProbeChannel, &probeHandler{listener: l})
	return s
}

// connect opens the next session, after a pause if it is not the first. The pause grows with
// every session that was lost before it heard a probe.
func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	if l.tried {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(l.pause.NextBackOff()):
		}
	}
	l.tried = true
	connectCtx, cancel := context.WithTimeout(ctx, l.cfg.ConnectTimeout)
	defer cancel()
	conn, err := l.cfg.Connect(connectCtx)
	if err != nil {
		return nil, err
	}
	l.unlisted = len(l.cfg.Handlers) + 1
	l.update(func(m *machine, now time.Time) {
		l.conn = conn
		m.connected(now)
	})
	return conn, nil
}

// sessionError takes the errors that pgxlisten reports. All but one end the session: a
// notification for a channel of somebody else, which a pooler can deliver.
func (l *Listener) sessionError(ctx context.Context, err error) {
	if ctx.Err() != nil { // shutting down
		return
	}
	l.update(func(m *machine, now time.Time) {
		if l.conn != nil && !l.conn.IsClosed() {
			return
		}
		l.conn = nil
		m.lost(sessionFault(err), now)
	})
}

// channelListened counts the channels of a new session.
func (l *Listener) channelListened() {
	l.unlisted--
	if l.unlisted == 0 {
		l.update((*machine).listened)
	}
}

// wakeHandler calls the function of one channel.
type wakeHandler struct {
	listener *Listener
	channel  string
	wake     func()
}

// HandleNotification implements [pgxlisten.Handler].
func (h *wakeHandler) HandleNotification(context.Context, *pgconn.Notification, *pgx.Conn) error {
	h.call()
	return nil
}

// HandleBacklog implements [pgxlisten.BacklogHandler]: what was sent while no session
// listened is lost, so every (re)LISTEN is a reason to look.
func (h *wakeHandler) HandleBacklog(context.Context, string, *pgx.Conn) error {
	h.listener.channelListened()
	h.call()
	return nil
}

func (h *wakeHandler) call() {
	defer func() {
		if p := recover(); p != nil {
			h.listener.cfg.Log.Error().Str("channel", h.channel).Interface("panic", p).
				Bytes("stack", debug.Stack()).Msg("listener handler panicked")
		}
	}()
	h.wake()
}

// probeHandler recognises the echoes of this listener's own probes.
type probeHandler struct{ listener *Listener }

// HandleNotification implements [pgxlisten.Handler].
func (h *probeHandler) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	l := h.listener
	digits, mine := strings.CutPrefix(n.Payload, l.id+":")
	if !mine {
		return nil
	}
	seq, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return nil // forged: not this listener's spelling
	}
	l.update(func(m *machine, now time.Time) {
		if m.echo(seq, now) {
			l.pause.Reset()
		}
	})
	return nil
}

// HandleBacklog implements [pgxlisten.BacklogHandler].
func (h *probeHandler) HandleBacklog(context.Context, string, *pgx.Conn) error {
	h.listener.channelListened()
	return nil
}
