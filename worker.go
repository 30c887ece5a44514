package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/audit"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/listener"
	"github.com/seed-9a365b49/outbox/migrations"
	"github.com/seed-9a365b49/outbox/poller"
)

// What handlers need, so that most services import this package alone.
type (
	// Event is what a handler receives.
	Event = event.Event
	// Handler handles one event: see [dispatch.Handler].
	Handler = dispatch.Handler
	// HandlerFunc is a function as a [Handler].
	HandlerFunc = dispatch.HandlerFunc
	// Middleware wraps every handler.
	Middleware = dispatch.Middleware
	// SubscribeOption changes one subscription.
	SubscribeOption = dispatch.SubscribeOption
)

// AnyType subscribes to the events of every type.
const AnyType = dispatch.AnyType

// WithTimeout sets the handler timeout of one subscriber.
func WithTimeout(d time.Duration) SubscribeOption { return dispatch.WithTimeout(d) }

// Permanent marks an error that no retry can heal: the event is dead at once.
func Permanent(err error) error { return dispatch.Permanent(err) }

// RetryAfter asks for the next attempt after d instead of the retry policy's delay. It consumes an attempt.
func RetryAfter(d time.Duration, err error) error { return dispatch.RetryAfter(d, err) }

// Typed makes a handler of a function that takes the event's data as a T: see [dispatch.Typed].
func Typed[T any](fn func(ctx context.Context, e *Event, data T) error) Handler {
	return dispatch.Typed(fn)
}

// Migrate makes the schema of the outbox, or brings it up to date. It is safe when several processes call it at once.
// databaseURL is a connection URL or a keyword=value string.
func Migrate(ctx context.Context, databaseURL string) error {
	config, err := parseAddress(databaseURL)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := migrations.Up(ctx, config, nil); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Worker delivers events to subscribers. Make one with [NewWorker], register handlers with [Worker.Subscribe], then
// call [Worker.Run]. The other methods can be called at any time from any goroutine.
//
// One worker program per outbox: every replica must register the same subscribers. Two programs with different
// handlers on one outbox would dead-letter each other's events.
type Worker struct {
	cfg        Config
	dispatcher *dispatch.Dispatcher

	mu       sync.Mutex
	problems []error // of Subscribe, for Run

	database atomic.Pointer[database] // set by Run, as are the next two
	poller   atomic.Pointer[poller.Poller]
	listener atomic.Pointer[listener.Listener]
	heard    chan struct{} // closed after the first LISTEN
	ready    chan struct{}
	running  atomic.Bool
}

// NewWorker returns a worker, or everything that is wrong with cfg. It does not connect.
func NewWorker(cfg Config) (*Worker, error) {
	cfg, err := cfg.withDefaults()
	dispatcher, err2 := dispatch.New(cfg.dispatch())
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	w := &Worker{cfg: cfg, dispatcher: dispatcher, heard: make(chan struct{}), ready: make(chan struct{})}
	if attached := cfg.Observer.Attached; attached != nil {
		attached(w)
	}
	return w, nil
}

// Subscribe has the events of a type ([AnyType]: of every type) handled by h, in the name of a
// subscriber. Several subscribers of one type are all called; a retry calls only those that have not succeeded, also after
// a restart, so a subscriber's name must stay the same. Subscribe before Run.
//
// An error is also returned by Run, so it need not be checked here.
func (w *Worker) Subscribe(eventType, subscriber string, h Handler, opts ...SubscribeOption) error {
	err := w.dispatcher.Subscribe(eventType, subscriber, h, opts...)
	if err != nil {
		w.mu.Lock()
		w.problems = append(w.problems, err)
		w.mu.Unlock()
	}
	return err
}

// Use wraps every handler; the first middleware is outermost. Call it before Run.
func (w *Worker) Use(middleware ...Middleware) { w.dispatcher.Use(middleware...) }

// Ready is closed when the worker listens and has found out whether it is the owner or a standby: from then on a
// committed event is announced to it.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Wake tells the worker that an event has been committed. It is never needed, and spares an embedding publisher the way
// through the database: call it after the commit. It never blocks.
func (w *Worker) Wake() {
	if p := w.poller.Load(); p != nil {
		p.Wake()
	}
}

// Run works until ctx ends and then shuts down in order: it stops fetching, lets handlers finish for
// [Config.ShutdownGrace], settles what was handled, and hands over to a standby. It returns nil after an
// orderly shutdown. A database that is unreachable or not migrated at the start is an error; later it is an
// outage to ride out. Run can be called once.
func (w *Worker) Run(ctx context.Context) (err error) {
	if !w.running.CompareAndSwap(false, true) {
		return errors.New("outbox: Run was called before")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("outbox: %w", err)
		}
	}()
	if err := errors.Join(w.problems...); err != nil {
		return err
	}
	db, err := connect(ctx, w.cfg)
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it had begun
		}
		return err
	}
	defer db.close()
	l, p, err := w.build(db)
	if err != nil {
		return err
	}
	w.database.Store(db)
	w.listener.Store(l)
	w.poller.Store(p)

	// The listener goes on until the last event is settled: it has nothing to do with the order of a shutdown.
	listening, stopListening := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { _ = l.Run(listening) }) // nil: its context is what ends it
	others.Go(func() { w.announce(listening, p) })
	if at, _ := w.cfg.daily(); at != nil {
		others.Go(func() { w.archiver(*at, db, p).run(ctx) })
	}
	if w.cfg.Observer.Sampled != nil {
		others.Go(func() {
			select {
			case <-p.Started():
				w.sampler(db, p).run(listening)
			case <-listening.Done():
			}
		})
	}
	err = p.Run(ctx)
	stopListening()
	others.Wait()
	w.poller.Store(nil)
	return err
}

// build joins the parts.
func (w *Worker) build(db *database) (*listener.Listener, *poller.Poller, error) {
	var l *listener.Listener
	cfg := w.cfg.poller()
	cfg.Pool, cfg.Connect, cfg.ConnectGate = db.pool, db.connectOwner, db.connectGate
	cfg.OnPublished = w.cfg.onPublished()
	cfg.Namespace, cfg.Sequence = db.facts.Namespace, db.facts.Sequence
	cfg.Deliver = w.dispatcher.Deliver
	cfg.Listening = func() bool { return l.Healthy() }
	cfg.Suspect = func(reason string) { l.Suspect(reason) }
	p, err := poller.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	var once sync.Once
	l, err = listener.New(listener.Config{
		Connect:        db.connectListener,
		ConnectTimeout: w.cfg.ConnectTimeout,
		Handlers: map[string]func(){
			pgnames.WakeChannel:    func() { once.Do(func() { close(w.heard) }); p.Notified() },
			pgnames.ReleaseChannel: p.Released,
			pgnames.RetryChannel:   p.Redriven,
		},
		ProbeChannel: pgnames.ProbeChannel,
		SendProbe: func(ctx context.Context, payload string) error {
			return eventsdb.New(db.pool).Notify(ctx, eventsdb.NotifyParams{Channel: pgnames.ProbeChannel, Payload: payload})
		},
		OnChange: func(listener.State) { p.Look() },
		Log:      w.cfg.Log,
	})
	return l, p, err
}

// archiver deletes old events for this worker.
func (w *Worker) archiver(at daily, db *database, p *poller.Poller) *archiver {
	return &archiver{
		at:    at,
		owner: p.Owner,
		archive: func(ctx context.Context) (admin.Archived, error) {
			o := admin.ArchiveOptions{Retention: w.cfg.Retention}
			if w.cfg.Audit {
				o.Only = audit.Recorded
			}
			return admin.Archive(ctx, db.pool, o)
		},
		log: w.cfg.Log,
	}
}

// announce closes ready once the worker listens and its place is decided.
func (w *Worker) announce(ctx context.Context, p *poller.Poller) {
	for _, first := range []<-chan struct{}{w.heard, p.Started()} {
		select {
		case <-first:
		case <-ctx.Done():
			return
		}
	}
	close(w.ready)
}
