package measure

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// overtime is by how many times its length a slice may be late before what is left of it is given up: a server that cannot keep
	// up would otherwise fall behind for ever.
	overtime = 1
	// leastOvertime is for slices that are too short to say that.
	leastOvertime = 200 * time.Millisecond
)

// openLoopArm publishes events when they are due and measures when they arrive.
type openLoopArm struct {
	*consumer
	publishers          []*pgx.Conn
	fromDue, fromCommit *histogram
	unsent, missed      int
}

func newOpenLoopArm(c *consumer) *openLoopArm {
	a := &openLoopArm{consumer: c}
	a.forget()
	return a
}

// forget starts anew.
func (a *openLoopArm) forget() {
	a.fromDue, a.fromCommit, a.unsent, a.missed = newHistogram(), newHistogram(), 0, 0
}

// measure publishes one slice, and waits until all of it has arrived.
func (a *openLoopArm) measure(ctx context.Context, dues []time.Duration) error {
	start := time.Now()
	events, ended, err := a.publish(ctx, start, dues)
	if err != nil {
		return err
	}
	// The last event to be committed has the highest id: what has not arrived before it never will.
	last, err := publishOne(ctx, a.publishers[0])
	if err != nil {
		return err
	}
	a.wake()
	if _, err := a.arrivals.wait(ctx, last.id); err != nil {
		return err
	}
	if err := a.settled(ctx); err != nil {
		return err
	}
	for i, event := range events {
		due := start.Add(dues[i])
		if event.id == 0 {
			a.unsent++
			a.fromDue.record(ended.Sub(due))
			continue
		}
		at, arrived := a.arrivals.of(event.id)
		if !arrived {
			a.missed++
			continue
		}
		a.fromDue.record(at.Sub(due))
		a.fromCommit.record(at.Sub(event.acked))
	}
	a.arrivals.forget()
	return nil
}

// publish returns what was published of each event of the schedule, nothing where there was no time for it.
func (a *openLoopArm) publish(ctx context.Context, start time.Time, dues []time.Duration) (events []published, ended time.Time, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events = make([]published, len(dues)) // each is written by one publisher
	indices := pace(ctx, start, dues)
	last := dues[len(dues)-1]
	giveUp := start.Add(last + max(last*overtime, leastOvertime))
	errs := make([]error, len(a.publishers))
	var publishing sync.WaitGroup
	for p, conn := range a.publishers {
		publishing.Go(func() {
			for i := range indices {
				if time.Now().After(giveUp) {
					continue
				}
				if events[i], errs[p] = publishOne(ctx, conn); errs[p] != nil {
					cancel()
					return
				}
				a.wake()
			}
		})
	}
	publishing.Wait()
	for range indices { // until the clock has stopped
	}
	return events, time.Now(), errors.Join(errs...)
}

func (a *openLoopArm) result() LatencyArm {
	fromDue := a.fromDue.summary()
	return LatencyArm{FromCommit: a.fromCommit.summary(), FromDue: &fromDue, Unsent: a.unsent, Missed: a.missed}
}
