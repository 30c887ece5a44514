package poller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// Poller joins wakes, fetches, lanes, handlers and settling. Make one with [New] and start it with
// [Poller.Run]; the other methods can be called at any time from any goroutine.
type Poller struct {
	cfg        Config
	log        zerolog.Logger
	lanes      *lanes
	settler    *settler
	ownership  *ownership
	paceLimits paceLimits

	nudge       chan struct{} // the fetch loop has something to look at
	woken       atomic.Bool   // a wake came in since the last fetch began
	calls       atomic.Int64  // announcements that the loop has not counted yet
	redriven    atomic.Bool   // somebody has made events due since the loop last looked
	started     chan struct{} // closed when ownership has first been decided
	once        sync.Once
	session     atomic.Pointer[session] // of the owner, nil while this worker is not
	currentGate atomic.Pointer[gate]    // of the session
	settled     settledBox

	handlers *crew
	gates    sync.WaitGroup
	// handling is the context of handlers: it outlives Run's by the grace.
	handling context.Context

	stats stats
}

// stats is what [Poller.Stats] reports.
type stats struct {
	rescues      atomic.Int64
	notEnvelopes atomic.Int64
	lastSweep    atomic.Int64 // nanoseconds since epoch
	oldestUS     atomic.Int64
	polling      atomic.Bool // events arrive without notifications
	wakes        wakes
}

// endSpell forgets what is true of an owner only.
func (s *stats) endSpell() {
	s.lastSweep.Store(0)
	s.oldestUS.Store(0)
}

// Stats is a snapshot of what the poller is doing.
type Stats struct {
	// Owner is true while this worker fetches; else it is a standby.
	Owner bool
	// InFlight is how many events have been fetched and not yet settled, Handling how many of them a handler
	// is working on, Unsettled how many outcomes wait for the database.
	InFlight, Handling, Unsettled int
	// SettleError is why outcomes cannot be written; empty: they can.
	SettleError string
	// LastSweep is when this owner's last complete sweep ended; zero: none has, or it is a standby.
	LastSweep time.Time
	// OldestPending is the age of the oldest event that the last sweep found waiting, by its occurred_at.
	OldestPending time.Duration
	// Rescues counts events that only the sweep found. It should stay 0.
	Rescues int64
	// NotEnvelopes counts events whose payload was not an envelope.
	NotEnvelopes int64
	// Unannounced is true while events arrive that no notification announced.
	Unannounced bool
	// Wakes counts what had this worker look for events.
	Wakes Wakes
	// Gate says whether publishers announce their events to this worker, while it is the owner.
	Gate GateState
}

// New returns a poller, or everything that is wrong with cfg.
func New(cfg Config) (*Poller, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("poller config: %w", err)
	}
	p := &Poller{
		cfg:        cfg,
		log:        cfg.Log,
		lanes:      newLanes(cfg.limits()),
		nudge:      make(chan struct{}, 1),
		started:    make(chan struct{}),
		paceLimits: defaultPace,
	}
	p.handlers = newCrew(p.handle)
	st := &store{pool: cfg.Pool, durable: cfg.DurableMarks, onPublished: cfg.OnPublished, settled: cfg.Observer.Settled}
	p.settler = newSettler(st.settle, p.takeSettlements, cfg.Log)
	p.ownership = &ownership{
		connect: cfg.Connect, log: cfg.Log,
		nudge:   make(chan struct{}, 1),
		refused: p.decided,
	}
	return p, nil
}

// Wake says that an event has been committed: the loop fetches, unless it is about to anyway. It never blocks.
func (p *Poller) Wake() { p.announced(&p.stats.wakes.calls) }

// Notified is [Poller.Wake] for a notification.
func (p *Poller) Notified() { p.announced(&p.stats.wakes.notifications) }

func (p *Poller) announced(by *atomic.Int64) {
	if p.session.Load() == nil {
		return // the first scan of an owner reads everything
	}
	by.Add(1)
	p.calls.Add(1)
	p.fetchSoon()
}

// fetchSoon has the loop fetch. Many times in a row are as good as one.
func (p *Poller) fetchSoon() {
	p.woken.Store(true)
	signal(p.nudge)
}

// Redriven says that somebody has made events due: the loop looks for due retries from the start. It never blocks.
func (p *Poller) Redriven() {
	p.redriven.Store(true)
	signal(p.nudge)
}

// Look has the fetch loop look at its clocks anew: the listener has changed, or the gate.
func (p *Poller) Look() { signal(p.nudge) }

// Released says that the owner has given the outbox up.
func (p *Poller) Released() { signal(p.ownership.nudge) }

// decided says that this worker is the owner, which shows by then, or a standby.
func (p *Poller) decided() { p.once.Do(func() { close(p.started) }) }

// Started is closed when it has first been decided whether this worker is the owner or a standby.
func (p *Poller) Started() <-chan struct{} { return p.started }

// Owner reports whether this worker fetches; else it is a standby.
func (p *Poller) Owner() bool { return p.session.Load() != nil }

// Stats returns a snapshot. It is cheap and asks nothing of the database.
func (p *Poller) Stats() Stats {
	s := Stats{
		Owner:         p.Owner(),
		Unsettled:     p.settler.left(),
		SettleError:   p.settler.failure(),
		OldestPending: time.Duration(p.stats.oldestUS.Load()) * time.Microsecond,
		Rescues:       p.stats.rescues.Load(),
		NotEnvelopes:  p.stats.notEnvelopes.Load(),
		Unannounced:   p.stats.polling.Load(),
		Wakes:         p.stats.wakes.counts(),
	}
	if g := p.currentGate.Load(); g != nil {
		s.Gate = g.now()
	}
	s.InFlight, s.Handling = p.lanes.counts()
	if at := p.stats.lastSweep.Load(); at != 0 {
		s.LastSweep = epoch.Add(time.Duration(at))
	}
	return s
}

// ErrHandlersRemain is returned by [Poller.Run] when handlers did not return after their contexts were cancelled. Their
// events are not settled and will be delivered again.
var ErrHandlersRemain = errors.New("handlers were still running after their contexts had been cancelled")

const (
	// cancelGrace is how long handlers may take to return once their contexts are cancelled.
	cancelGrace = 5 * time.Second
	// lastSettle bounds the settling of what was handled before a shutdown.
	lastSettle = 10 * time.Second
)

// Run works until ctx ends, then shuts down in order: it stops fetching, lets handlers finish for
// [Config.ShutdownGrace], cancels those that have not, settles, and gives the ownership back. It returns nil after
// an orderly shutdown. It can be called once.
func (p *Poller) Run(ctx context.Context) error {
	var cancelHandlers context.CancelFunc
	p.handling, cancelHandlers = context.WithCancel(context.WithoutCancel(ctx))
	defer cancelHandlers()
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()
	drain := make(chan struct{})
	var settler sync.WaitGroup
	settler.Go(func() { p.settler.run(settling, drain) })

	var last *owned // the session to release
	for ctx.Err() == nil {
		if last = p.ownership.acquire(ctx); last == nil {
			break
		}
		session := newSession(last, &p.cfg)
		p.session.Store(session)
		p.decided()
		err := p.work(ctx, session)
		p.lanes.discard()
		if ctx.Err() == nil {
			p.session.Store(nil)
			p.ownership.change("owner_lost", err)
			closeSession(ctx, last.conn)
			last = nil
		}
	}

	err := p.finishHandlers(cancelHandlers)
	close(drain)
	timer := time.AfterFunc(lastSettle, stopSettling)
	defer timer.Stop()
	settler.Wait()
	p.gates.Wait()
	if last != nil {
		p.session.Store(nil)
		p.ownership.release(ctx, last.conn)
	}
	if left := p.settler.left(); left > 0 {
		err = errors.Join(err, fmt.Errorf("%d handled events could not be settled and will be delivered again", left))
	}
	return err
}

// work fetches and keeps the gate until ctx ends (nil) or the session is lost (its error).
func (p *Poller) work(ctx context.Context, s *session) error {
	ctx, stopGate := context.WithCancel(ctx)
	defer stopGate() // it ends by itself: a session that hangs must not keep the ownership
	defer p.currentGate.Store(nil)
	defer p.stats.endSpell()
	wake := func() {
		p.stats.wakes.gates.Add(1)
		p.fetchSoon()
	}
	g := &gate{connect: p.cfg.ConnectGate, wake: wake, look: p.Look, log: p.log}
	p.currentGate.Store(g)
	p.gates.Go(func() { g.run(ctx) })
	return p.loop(ctx, s, g)
}

// finishHandlers waits for the handlers, with their contexts cancelled after the grace.
func (p *Poller) finishHandlers(cancel context.CancelFunc) error {
	done := make(chan struct{})
	go func() {
		p.handlers.end()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(p.cfg.ShutdownGrace):
	}
	_, running := p.lanes.counts()
	p.log.Warn().Int("handling", running).Msg("shutdown_grace_over")
	cancel()
	select {
	case <-done:
		return nil
	case <-time.After(cancelGrace):
		return ErrHandlersRemain
	}
}

// startHandlers starts as many handlers as there are lanes ready and slots free.
func (p *Poller) startHandlers() {
	for range p.lanes.startable() {
		p.handlers.call()
	}
}

// handle takes one event after another until there is none for it. A handler may end this goroutine (runtime.Goexit): the loop
// calls for another when that event's outcome is settled.
func (p *Poller) handle() {
	for {
		session := p.session.Load()
		if session == nil || !session.alive() {
			return // no handler starts while another worker may own the outbox
		}
		r := p.lanes.next()
		if r == nil {
			return
		}
		p.deliver(r)
	}
}

// deliver has one event handled.
func (p *Poller) deliver(r *row) {
	delivery, isEnvelope, err := r.decode(p.cfg.Namespace)
	if err != nil {
		p.log.Error().Int64("event_id", r.id).Str("event_type", r.eventType).Err(err).Msg("event_dead")
		p.finish(r, dispatch.Outcome{Kind: dispatch.Dead, Error: dispatch.CleanError(err.Error())})
		return
	}
	if !isEnvelope {
		p.stats.notEnvelopes.Add(1)
	}
	p.cfg.Deliver(p.handling, delivery, func(o dispatch.Outcome) { p.finish(r, o) })
}

// finish hands the outcome over to the settler and the lane on to its next event.
func (p *Poller) finish(r *row, result dispatch.Outcome) {
	reload := p.lanes.done(r, result.Kind == dispatch.Retry)
	if result.Kind == dispatch.Untouched {
		p.lanes.abandon(r)
		return
	}
	o := outcome{row: r, result: published}
	if result.Kind != dispatch.Published {
		failure := result // a success costs no allocation
		o.result = &failure
	}
	p.settler.add(o)
	if reload {
		signal(p.nudge)
	}
}

// takeSettlements keeps what was settled for the fetch loop, which takes it in between two statements.
func (p *Poller) takeSettlements(list []settlement) {
	p.settled.put(list)
	signal(p.nudge)
}

// settledBox holds batches of settlements until the fetch loop collects them.
type settledBox struct {
	mu   sync.Mutex
	list [][]settlement
}

func (b *settledBox) put(list []settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, list)
}

func (b *settledBox) take() [][]settlement {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.list
	b.list = nil
	return list
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
