package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/migrations"
	"github.com/seed-9a365b49/outbox/poller"
)

// warmUp events come first, unmeasured: plans and caches are made.
const warmUp = 50

// Latency compares how long committed events took to a handler.
type Latency struct {
	// Name says what was measured: idle, woken, polling or steady.
	Name string `json:"name"`
	// Rate is how many events a second were due; 0 where they went one at a time.
	Rate   float64    `json:"rate"`
	Worker LatencyArm `json:"worker"`
	Floor  LatencyArm `json:"floor"`
}

// LatencyArm is one side of the comparison.
type LatencyArm struct {
	// FromCommit counts from the acknowledgement of the commit.
	FromCommit Summary `json:"from_commit"`
	// FromDue counts from the time that the event was due to be published, whenever a publisher came to it: queueing and the
	// commit are part of it. Only where events are due by a schedule.
	FromDue *Summary `json:"from_due,omitempty"`
	// Unsent events were due, and had not been published when time was up. They count in FromDue with the time until then.
	Unsent int `json:"unsent"`
	// Missed events were published and never arrived: the floor does not see one that commits after a higher id.
	Missed int `json:"missed"`
}

// Figure is the distribution that counts: from the time that events were due, where there is one.
func (a LatencyArm) Figure() Summary {
	if a.FromDue != nil {
		return *a.FromDue
	}
	return a.FromCommit
}

// RatioP50 is the worker's median ÷ the floor's, RatioP99 that of the 99th percentiles.
func (l Latency) RatioP50() float64 { return Ratio(l.Worker.Figure().P50, l.Floor.Figure().P50) }
func (l Latency) RatioP99() float64 { return Ratio(l.Worker.Figure().P99, l.Floor.Figure().P99) }

// MarshalJSON adds the ratios.
func (l Latency) MarshalJSON() ([]byte, error) {
	type plain Latency
	return json.Marshal(struct {
		plain
		P50 float64 `json:"ratio_p50"`
		P99 float64 `json:"ratio_p99"`
	}{plain(l), l.RatioP50(), l.RatioP99()})
}

// Wakes says how a worker and its floor hear of events.
type Wakes string

const (
	// Notified: by notifications.
	Notified Wakes = "notified"
	// Woken: publishers are in the same process and call Worker.Wake after the commit; there are no notifications.
	Woken Wakes = "woken"
	// Polling: not at all. Both look at the interval of a worker that knows of none.
	Polling Wakes = "polling"
)

// Pair is a worker and its floor, each on a database of its own. Measurements share it.
type Pair struct {
	wakes         Wakes
	worker, floor *consumer
}

// StartPair starts both.
func StartPair(ctx context.Context, s *Server, wakes Wakes) (*Pair, error) {
	mode, floorMode, source, wake := migrations.NotifyOff, migrations.NotifyOff, byClock(poller.DefaultDegradedPollInterval), func() {}
	switch wakes {
	case Notified:
		mode, floorMode, source = migrations.NotifyGated, migrations.NotifyAlways, byNotification
	case Woken:
		woken := make(chan struct{}, 1)
		source = byChannel(woken)
		wake = func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	}
	worker, err := newWorkerConsumer(ctx, s, mode, wakes == Woken)
	if err != nil {
		return nil, err
	}
	floor, err := newBareConsumer(ctx, s, floorMode, source, wake)
	if err != nil {
		return nil, errors.Join(err, worker.stop())
	}
	return &Pair{wakes, worker, floor}, nil
}

// Close stops both, and drops their databases.
func (p *Pair) Close() error { return errors.Join(p.worker.stop(), p.floor.stop()) }

// OneByOne is a measurement of single events: the next one is published when the last is settled, and after a pause.
type OneByOne struct {
	Events int           // of each arm
	Limit  time.Duration // after which there are no more; zero: none
}

// OneByOne measures from commit to handler while nothing else is going on. The arms take turns, event by event.
func (p *Pair) OneByOne(ctx context.Context, o OneByOne) (l Latency, err error) {
	l.Name = "idle"
	if p.wakes != Notified {
		l.Name = string(p.wakes)
	}
	arms := make([]*oneByOneArm, 2)
	for i, c := range []*consumer{p.worker, p.floor} {
		conns, err := openPublishers(ctx, c.db, 1, publishNone)
		if err != nil {
			return l, err
		}
		defer closePublishers(ctx, conns)
		arms[i] = &oneByOneArm{consumer: c, publisher: conns[0], latencies: newHistogram()}
	}
	turn := func() error {
		for _, arm := range arms {
			if err := arm.measure(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	for range min(warmUp, o.Events) {
		if err := turn(); err != nil {
			return l, err
		}
	}
	arms[0].latencies, arms[1].latencies = newHistogram(), newHistogram()
	for n, began := 0, time.Now(); n < o.Events && (n == 0 || o.Limit == 0 || time.Since(began) < o.Limit); n++ {
		if err := turn(); err != nil {
			return l, err
		}
	}
	l.Worker.FromCommit, l.Floor.FromCommit = arms[0].latencies.summary(), arms[1].latencies.summary()
	return l, nil
}

// oneByOneArm publishes events one at a time and measures when they arrive.
type oneByOneArm struct {
	*consumer
	publisher *pgx.Conn
	latencies *histogram
}

// measure publishes an event in a transaction of its own and waits until it has arrived and is settled. Then it
// pauses, for an irregular time so that no timer of the worker's keeps step.
func (a *oneByOneArm) measure(ctx context.Context) error {
	event, err := publishOne(ctx, a.publisher)
	if err != nil {
		return err
	}
	a.wake()
	arrived, err := a.arrivals.wait(ctx, event.id)
	if err != nil {
		return err
	}
	a.latencies.record(arrived.Sub(event.acked))
	a.arrivals.forget()
	if err := a.settled(ctx); err != nil {
		return err
	}
	time.Sleep(time.Millisecond + rand.N(2*time.Millisecond))
	return nil
}

// OpenLoop is a measurement of events that are due by a schedule, whether or not earlier ones have been published: a publisher that
// has to wait makes the events behind it late, and that counts (no coordinated omission).
type OpenLoop struct {
	Rate       float64       // events a second, irregularly, as of many independent sources
	Publishers int           // sessions that share the events
	WarmUp     time.Duration // unmeasured, at first
	Slice      time.Duration // the arms take turns in slices of this length
	Slices     int           // of each arm
}

// OpenLoop measures under a steady arrival of events.
func (p *Pair) OpenLoop(ctx context.Context, o OpenLoop) (l Latency, err error) {
	l.Name, l.Rate = "steady", o.Rate
	if p.wakes != Notified {
		l.Name = string(p.wakes)
	}
	arms := []*openLoopArm{newOpenLoopArm(p.worker), newOpenLoopArm(p.floor)}
	for _, arm := range arms {
		if arm.publishers, err = openPublishers(ctx, arm.db, o.Publishers, publishNone); err != nil {
			return l, err
		}
		defer closePublishers(ctx, arm.publishers)
		if err := arm.measure(ctx, schedule(o.Rate, o.WarmUp, 0)); err != nil {
			return l, err
		}
		arm.forget()
	}
	for slice := range o.Slices {
		dues := schedule(o.Rate, o.Slice, uint64(slice)+1)
		for _, arm := range arms {
			if err := arm.measure(ctx, dues); err != nil {
				return l, err
			}
		}
	}
	l.Worker, l.Floor = arms[0].result(), arms[1].result()
	if n := l.Worker.Missed; n > 0 {
		return l, fmt.Errorf("%d events have not reached the worker", n)
	}
	return l, nil
}
