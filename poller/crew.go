package poller

import (
	"sync"
	"sync/atomic"
)

// crew does a job on as many goroutines at once as it is called. Some of those that are done wait for the next call: a
// goroutine begins with a small stack, and to grow it costs an event that finds an idle worker, on cold caches, as much
// as its lane, its decoding and its context together.
type crew struct {
	job     func()
	members sync.WaitGroup
	calls   chan struct{} // taken by one that waits
	waiting atomic.Int32
	over    chan struct{}
}

// crewWaits is how many wait. More are needed at once only where events come fast, and goroutines find no rest.
const crewWaits = 8

func newCrew(job func()) *crew {
	return &crew{job: job, calls: make(chan struct{}), over: make(chan struct{})}
}

// call has the job done once more. It does not block.
func (c *crew) call() {
	select {
	case c.calls <- struct{}{}:
	default:
		c.members.Go(c.member)
	}
}

// member works until it is not needed. The job may end its goroutine (runtime.Goexit).
func (c *crew) member() {
	for {
		c.job()
		if !c.wait() {
			return
		}
	}
}

// wait reports whether another call came.
func (c *crew) wait() bool {
	defer c.waiting.Add(-1)
	if c.waiting.Add(1) > crewWaits {
		return false
	}
	select {
	case <-c.calls:
		return true
	case <-c.over:
		return false
	}
}

// end lets those that wait go, and returns when all are gone. It is called once, after the last call.
func (c *crew) end() {
	close(c.over)
	c.members.Wait()
}
