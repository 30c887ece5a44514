package poller

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestCrew(t *testing.T) {
	t.Parallel()

	t.Run("does the job as often as it is called, and at once", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var doing, done atomic.Int32
			c := newCrew(func() {
				doing.Add(1)
				<-release
				done.Add(1)
			})
			const many = 3 * crewWaits
			for range many {
				c.call()
			}
			if synctest.Wait(); doing.Load() != many {
				t.Errorf("%d at once", doing.Load())
			}
			close(release)
			synctest.Wait()
			for range many {
				c.call()
			}
			if c.end(); done.Load() != 2*many {
				t.Errorf("done %d times, called %d times", done.Load(), 2*many)
			}
		})
	})
	t.Run("some wait for the next call, and go in the end", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			c := newCrew(func() { <-release })
			for range 2 * crewWaits {
				c.call()
			}
			close(release)
			if synctest.Wait(); c.waiting.Load() != crewWaits {
				t.Errorf("%d wait", c.waiting.Load())
			}
			c.call()
			if synctest.Wait(); c.waiting.Load() != crewWaits {
				t.Errorf("after a call %d wait", c.waiting.Load())
			}
			c.end() // synctest fails the test if one remains
		})
	})
	t.Run("the job may end its goroutine", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var done atomic.Int32
			c := newCrew(func() {
				done.Add(1)
				runtime.Goexit()
			})
			for range 3 {
				c.call()
				synctest.Wait()
			}
			if c.end(); done.Load() != 3 || c.waiting.Load() != 0 {
				t.Errorf("done %d times, %d wait", done.Load(), c.waiting.Load())
			}
		})
	})
}
