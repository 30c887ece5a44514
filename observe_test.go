package outbox

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-9a365b49/outbox/admin"
)

func TestSampler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var owner atomic.Bool
		var samples, failures atomic.Int64
		s := &sampler{
			interval: time.Minute,
			owner:    owner.Load,
			count: func(ctx context.Context) (admin.Backlog, error) { // a database that does not answer
				<-ctx.Done()
				return admin.Backlog{}, context.Cause(ctx)
			},
			sampled: func(_ admin.Backlog, err error) {
				samples.Add(1)
				if err != nil && !errors.Is(err, context.Canceled) {
					failures.Add(1)
				}
			},
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx)
		}()
		time.Sleep(2*sampleTimeout + ownerLook/2) // so that what follows looks in between two of them
		for minute, want := range []int64{0, 1, 2, 2} {
			owner.Store(minute == 1 || minute == 2)
			time.Sleep(ownerLook + sampleTimeout) // it does not wait for the minute to pass
			synctest.Wait()
			if n := samples.Load(); n != want {
				t.Errorf("when minute %d began there were %d samples, want %d", minute, n, want)
			}
			time.Sleep(time.Minute - ownerLook - sampleTimeout)
			synctest.Wait()
			if n := samples.Load(); n != want || failures.Load() != want {
				t.Errorf("after minute %d there were %d samples and %d failures, want %d", minute, n, failures.Load(), want)
			}
		}
		cancel()
		<-done
	})
}
