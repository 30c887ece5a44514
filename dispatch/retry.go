package dispatch

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// maxDelay bounds every delay, so that now() + delay is always a valid timestamp.
const maxDelay = 10 * 365 * 24 * time.Hour

// RetryPolicy decides how long a failed event waits. It is called for many events at once,
// so it must be safe for concurrent use.
type RetryPolicy interface {
	// Delay returns the time between the failed attempt (1 for the first delivery) and
	// the next one. ok = false means that there is no next one: the event is dead, however
	// many attempts Config.MaxAttempts would leave.
	Delay(attempt int) (d time.Duration, ok bool)
}

// DefaultRetry is the ladder of the specification (MarkRetry: 1 min, 5 min, 15 min, 1 h, …)
// continued with 3 h, 6 h, 12 h, 24 h, 24 h, each plus up to 10 % jitter.
// With the default of ten attempts the last failure comes about three days after the first.
func DefaultRetry() RetryPolicy {
	return Ladder(
		time.Minute, 5*time.Minute, 15*time.Minute, time.Hour,
		3*time.Hour, 6*time.Hour, 12*time.Hour, 24*time.Hour, 24*time.Hour,
	)
}

// Ladder waits steps[0] after the first failure, steps[1] after the second, and so on, plus
// up to 10 % jitter, which keeps the events of one outage from coming back in one burst.
// Past the end the last step repeats: Config.MaxAttempts decides when an event is dead, not
// the number of steps. Without steps nothing is ever retried. A negative step is 0.
func Ladder(steps ...time.Duration) RetryPolicy {
	return ladder{steps: steps, jitter: rand.Float64}
}

type ladder struct {
	steps  []time.Duration
	jitter func() float64 // in [0, 1)
}

func (l ladder) Delay(attempt int) (time.Duration, bool) {
	if len(l.steps) == 0 {
		return 0, false
	}
	step := clampDelay(l.steps[min(max(attempt, 1), len(l.steps))-1])
	return step + time.Duration(float64(step)*0.1*l.jitter()), true
}

// maxBackOffSteps bounds the work of one Delay: the state of a BackOff is not kept between
// attempts, so attempt n costs n steps.
const maxBackOffSteps = 1000

// BackOff makes a policy of github.com/cenkalti/backoff/v4. A failed event may wait for
// days and be retried by another process, so no BackOff lives as long as its event: each call
// takes a new one from newBackOff and asks it for attempt delays (at most 1,000), of which the
// last counts. Stop, or any negative delay, ends the retries.
//
// Therefore:
//   - Set MaxElapsedTime to 0 (backoff.WithMaxElapsedTime(0)) and leave the limit to
//     Config.MaxAttempts. The library's default of 15 minutes does not measure the age of the
//     event, but it still ends the retries at the first single delay that is longer than it.
//   - Do not use backoff.WithContext: a cancelled context would turn a failure into a dead letter.
//   - newBackOff must return a new value each time: a BackOff is not safe for concurrent use.
func BackOff(newBackOff func() backoff.BackOff) RetryPolicy { return backOff{newBackOff} }

type backOff struct{ newBackOff func() backoff.BackOff }

func (p backOff) Delay(attempt int) (d time.Duration, ok bool) {
	b := p.newBackOff()
	b.Reset() // one made as a struct literal has no first interval yet
	for range min(max(attempt, 1), maxBackOffSteps) {
		if d = b.NextBackOff(); d < 0 {
			return 0, false
		}
	}
	return d, true
}

// nextDelay decides when the event's next attempt is due, or that there is none (ok = false).
// asked is the longest delay that a failed subscriber asked for with [RetryAfter], nil where
// none did; it takes the place of the policy's delay.
func (d *Dispatcher) nextDelay(attempt int, asked *time.Duration) (delay time.Duration, ok bool) {
	switch {
	case attempt >= d.maxAttempts:
		return 0, false
	case asked != nil:
		return clampDelay(*asked), true
	default:
		delay, ok = d.policyDelay(attempt)
		return clampDelay(delay), ok
	}
}

// policyDelay asks the policy. A policy is code of the user's: its panic must not take the
// worker down or lose the event, so the default ladder stands in for it.
func (d *Dispatcher) policyDelay(attempt int) (delay time.Duration, ok bool) {
	defer func() {
		if r := recover(); r != nil {
			d.log.Error().Int("attempt", attempt).Str("error", CleanError(fmt.Sprintf("panic: %v", r))).Bytes("stack", debug.Stack()).Msg("retry_policy_panicked")
			delay, ok = DefaultRetry().Delay(attempt)
		}
	}()
	return d.retry.Delay(attempt)
}

func clampDelay(d time.Duration) time.Duration { return min(max(d, 0), maxDelay) }
