package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/poller"
)

// Observer has functions that are told what a worker does. Those that are nil are not called. They are called from many goroutines, and the work waits
// for them, so they must return at once. Package metrics has one for Prometheus.
type Observer struct {
	// Attached is called by [NewWorker].
	Attached func(*Worker)
	// Called is called after each call of a handler.
	Called func(dispatch.Call)
	// Fetched is called after each fetch of new events, with how many rows came and how long it took.
	Fetched func(rows int, took time.Duration)
	// Settled is called after each write of outcomes.
	Settled func(poller.Batch)
	// Sampled is called with the backlog, as the owner counts it every SampleInterval; with an error where it could not.
	Sampled func(admin.Backlog, error)
	// SampleInterval defaults to 15 s.
	SampleInterval time.Duration
}

// DefaultSampleInterval is how often the owner counts the backlog for an [Observer].
const DefaultSampleInterval = 15 * time.Second

// sampleTimeout bounds one counting.
const sampleTimeout = 5 * time.Second

// sampler counts the backlog for an observer, if this worker is the owner then.
type sampler struct {
	interval time.Duration
	owner    func() bool
	count    func(context.Context) (admin.Backlog, error)
	sampled  func(admin.Backlog, error)
}

// ownerLook is how often a sampler looks whether this worker has become the owner, which costs nothing.
const ownerLook = time.Second

// run samples until ctx ends, at first when this worker becomes the owner.
func (s *sampler) run(ctx context.Context) {
	tick := time.NewTicker(min(ownerLook, s.interval))
	defer tick.Stop()
	var next time.Time
	for {
		if now := time.Now(); !s.owner() {
			next = now
		} else if !now.Before(next) {
			next = now.Add(s.interval)
			s.once(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *sampler) once(ctx context.Context) {
	counting, cancel := context.WithTimeoutCause(ctx, sampleTimeout, fmt.Errorf("it took longer than %s", sampleTimeout))
	defer cancel()
	b, err := s.count(counting)
	if ctx.Err() == nil {
		s.sampled(b, err)
	}
}

// SampleInterval is how often the worker counts the backlog for its [Observer] while it is the owner.
func (w *Worker) SampleInterval() time.Duration { return w.cfg.Observer.SampleInterval }

// sampler returns the sampler of this worker.
func (w *Worker) sampler(db *database, p *poller.Poller) *sampler {
	o := w.cfg.Observer
	return &sampler{interval: o.SampleInterval, owner: p.Owner, count: db.backlog, sampled: o.Sampled}
}
