package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// AnyType subscribes to events of every type.
const AnyType = "*"

// maxNameBytes bounds a subscriber's name: it is part of the key of events.outbox_delivery.
const maxNameBytes = 200

// registry holds who subscribes to what. It is open for registration until the first event
// asks for its subscribers; from then on it is a read-only table.
type registry struct {
	mu         sync.Mutex
	subs       []*subscription
	middleware []Middleware
	table      atomic.Pointer[table] // nil while open
}

// subscription is one subscriber of one event type (or of every type).
type subscription struct {
	eventType string
	name      string
	handler   Handler // with middleware, once the registry is closed
	timeout   time.Duration
	timedOut  error // the cause of a handler context that ran into timeout
}

// SubscribeOption changes one subscription.
type SubscribeOption func(*subscription)

// WithTimeout gives one subscriber a timeout of its own in place of Config.Timeout. It must be positive.
func WithTimeout(d time.Duration) SubscribeOption {
	return func(s *subscription) { s.timeout = d }
}

// Subscribe registers h to be called for every event of eventType; [AnyType] stands for every
// type. Several subscribers of one event are called at the same time, and a retry calls only
// those that have not succeeded, which is remembered by name: keep the name of a subscriber
// for as long as events may be waiting for it.
//
// It returns everything that is wrong: an empty event type, a name that is empty, longer than
// 200 bytes, not UTF-8 or with a NUL, a nil handler, a timeout that is not positive, or a name
// that would be called twice for one event (it has this type already, or one of the two
// registrations is for every type). After the first Dispatch it always fails.
//
// Every replica of one worker program must register the same subscribers, since any of them
// may be the one that handles an event.
func (d *Dispatcher) Subscribe(eventType, subscriber string, h Handler, opts ...SubscribeOption) error {
	s := &subscription{eventType: eventType, name: subscriber, handler: h, timeout: d.timeout}
	for _, opt := range opts {
		opt(s)
	}
	s.timedOut = fmt.Errorf("timed out after %s", s.timeout)
	if err := d.add(s); err != nil {
		return fmt.Errorf("subscribe %q to %q: %w", subscriber, eventType, err)
	}
	return nil
}

// Use adds middleware around the handlers of all subscribers, also those registered before.
// The first one added is the outermost. A nil middleware is skipped. After the first Dispatch
// it has no effect, which is logged as an error.
func (d *Dispatcher) Use(mw ...Middleware) {
	if !d.use(mw) {
		d.log.Error().Msg("middleware_ignored_after_first_event")
	}
}

func (r *registry) add(s *subscription) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table.Load() != nil {
		return errors.New("events are being dispatched already")
	}
	if err := errors.Join(s.validate(), r.conflict(s)); err != nil {
		return err
	}
	r.subs = append(r.subs, s)
	return nil
}

func (r *registry) use(mw []Middleware) (open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table.Load() != nil {
		return false
	}
	for _, m := range mw {
		if m != nil {
			r.middleware = append(r.middleware, m)
		}
	}
	return true
}

func (s *subscription) validate() error {
	var errs []error
	if s.eventType == "" {
		errs = append(errs, errors.New("event type is empty"))
	}
	switch {
	case s.name == "":
		errs = append(errs, errors.New("subscriber is empty"))
	case len(s.name) > maxNameBytes:
		errs = append(errs, fmt.Errorf("subscriber has %d bytes, at most %d are allowed", len(s.name), maxNameBytes))
	}
	if !utf8.ValidString(s.name) || strings.ContainsRune(s.name, 0) {
		errs = append(errs, errors.New("subscriber must be UTF-8 without NUL"))
	}
	if f, ok := s.handler.(HandlerFunc); s.handler == nil || ok && f == nil {
		errs = append(errs, errors.New("handler is nil"))
	}
	if s.timeout <= 0 {
		errs = append(errs, fmt.Errorf("timeout must be positive, not %s", s.timeout))
	}
	return errors.Join(errs...)
}

// conflict refuses a second registration of a name for one event: what a subscriber has
// achieved is remembered by its name alone.
func (r *registry) conflict(s *subscription) error {
	for _, o := range r.subs {
		if o.name == s.name && (o.eventType == s.eventType || o.eventType == AnyType || s.eventType == AnyType) {
			return fmt.Errorf("the name is taken by a subscription to %q", o.eventType)
		}
	}
	return nil
}

// table is the closed registry: for each event type its subscribers, in order of registration.
type table struct {
	byType map[string][]*subscription // those of the type and those of every type
	others []*subscription            // for types that nobody names
}

// subscribers returns who gets events of eventType. The caller must not change the slice.
// The first call closes the registry.
func (r *registry) subscribers(eventType string) []*subscription {
	t := r.table.Load()
	if t == nil {
		t = r.close()
	}
	if subs, ok := t.byType[eventType]; ok {
		return subs
	}
	return t.others
}

func (r *registry) close() *table {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.table.Load(); t != nil {
		return t
	}
	t := &table{byType: make(map[string][]*subscription)}
	for _, s := range r.subs {
		for _, m := range slices.Backward(r.middleware) {
			s.handler = m(named{s.handler, s.name})
		}
		if s.eventType == AnyType {
			t.others = append(t.others, s)
		} else {
			t.byType[s.eventType] = nil
		}
	}
	for eventType := range t.byType {
		for _, s := range r.subs {
			if s.eventType == eventType || s.eventType == AnyType {
				t.byType[eventType] = append(t.byType[eventType], s)
			}
		}
	}
	r.table.Store(t)
	return t
}
