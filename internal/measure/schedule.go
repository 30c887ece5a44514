package measure

import (
	"context"
	"math/rand/v2"
	"time"
)

// schedule returns when events are due, from a start on, so many a second on average and as irregular as those of many independent
// sources (a Poisson process). The same seed returns the same.
func schedule(rate float64, length time.Duration, seed uint64) (dues []time.Duration) {
	random := rand.New(rand.NewPCG(seed, 0))
	for due := time.Duration(0); ; {
		due += time.Duration(random.ExpFloat64() / rate * float64(time.Second))
		if due >= length && len(dues) > 0 {
			return dues
		}
		dues = append(dues, due)
	}
}

// pace sends the index of each event when it is due, never waiting for a receiver.
func pace(ctx context.Context, start time.Time, dues []time.Duration) <-chan int {
	indices := make(chan int, len(dues))
	go func() {
		defer close(indices)
		for i, due := range dues {
			if wait := due - time.Since(start); wait > 0 {
				sleep(wait)
			}
			if ctx.Err() != nil {
				return
			}
			indices <- i
		}
	}()
	return indices
}
