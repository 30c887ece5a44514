package dispatch_test

import (
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/dispatch"
)

func TestDefaultRetryIsTheLadderOfTheSpecification(t *testing.T) {
	t.Parallel()
	steps := []time.Duration{
		time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
		3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 24 * time.Hour,
	}
	for i, step := range steps {
		d, ok := dispatch.DefaultRetry().Delay(i + 1)
		if !ok || d < step || d > step+step/10 {
			t.Errorf("attempt %d: %s %v, want %s plus at most a tenth", i+1, d, ok, step)
		}
	}
}

func TestBackOff(t *testing.T) {
	t.Parallel()

	exponential := func() backoff.BackOff {
		return backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(time.Second), backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0),
			backoff.WithMaxInterval(10*time.Second), backoff.WithMaxElapsedTime(0))
	}
	for _, tc := range []struct {
		name    string
		make    func() backoff.BackOff
		attempt int
		want    time.Duration
		ok      bool
	}{
		{"the first failure takes the first delay", exponential, 1, time.Second, true},
		{"the third failure takes the third", exponential, 3, 4 * time.Second, true},
		{"the same attempt gives the same again", exponential, 3, 4 * time.Second, true},
		{"the interval is capped", exponential, 9, 10 * time.Second, true},
		{"an absurd attempt ends too", exponential, 1 << 40, 10 * time.Second, true},
		{"an attempt below one counts as the first", exponential, 0, time.Second, true},
		{"Stop ends the retries", func() backoff.BackOff { return &backoff.StopBackOff{} }, 1, 0, false},
		{"a limited policy retries as often as it says", limited(3), 3, time.Second, true},
		{"and then no more", limited(3), 4, 0, false},
		{"any negative delay ends the retries", func() backoff.BackOff { return backoff.NewConstantBackOff(-time.Hour) }, 1, 0, false},
		{"a struct literal that nobody reset works", func() backoff.BackOff {
			return &backoff.ExponentialBackOff{InitialInterval: time.Second, Multiplier: 2, MaxInterval: time.Hour, Clock: backoff.SystemClock, Stop: backoff.Stop}
		}, 2, 2 * time.Second, true},
		{"the library's MaxElapsedTime ends the retries at a longer delay", func() backoff.BackOff {
			return backoff.NewExponentialBackOff(backoff.WithInitialInterval(16*time.Minute), backoff.WithRandomizationFactor(0))
		}, 1, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, ok := dispatch.BackOff(tc.make).Delay(tc.attempt)
			if d != tc.want || ok != tc.ok {
				t.Fatalf("got %s %v, want %s %v", d, ok, tc.want, tc.ok)
			}
		})
	}
}

func limited(retries uint64) func() backoff.BackOff {
	return func() backoff.BackOff {
		return backoff.WithMaxRetries(backoff.NewConstantBackOff(time.Second), retries)
	}
}

func TestThePolicyDecides(t *testing.T) {
	t.Parallel()

	outcome := func(t *testing.T, p dispatch.RetryPolicy, log *logBook) dispatch.Outcome {
		t.Helper()
		d := newDispatcher(t, dispatch.Config{Retry: p, Log: log.logger()})
		subscribe(t, d, "a", failWith(errBoom))
		return d.Dispatch(t.Context(), dispatch.Delivery{Event: newEvent(), RetryCount: 4})
	}

	t.Run("it is asked with the number of the failed attempt", func(t *testing.T) {
		t.Parallel()
		out := outcome(t, policyFunc(func(attempt int) (time.Duration, bool) { return time.Duration(attempt) * time.Hour, true }), &logBook{})
		if out.Kind != dispatch.Retry || out.Delay != 5*time.Hour {
			t.Fatalf("%+v", out)
		}
	})

	t.Run("when it gives up the event is dead", func(t *testing.T) {
		t.Parallel()
		if out := outcome(t, dispatch.Ladder(), &logBook{}); out.Kind != dispatch.Dead {
			t.Fatalf("%+v", out)
		}
	})

	t.Run("its delays are kept between nothing and ten years", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct{ says, want time.Duration }{{-1, 0}, {1<<63 - 1, 10 * 365 * 24 * time.Hour}} {
			out := outcome(t, policyFunc(func(int) (time.Duration, bool) { return tc.says, true }), &logBook{})
			if out.Kind != dispatch.Retry || out.Delay != tc.want {
				t.Fatalf("%+v", out)
			}
		}
	})

	t.Run("when it panics the default ladder stands in", func(t *testing.T) {
		t.Parallel()
		book := &logBook{}
		out := outcome(t, dispatch.BackOff(func() backoff.BackOff { return nil }), book)
		if out.Kind != dispatch.Retry || out.Delay < 3*time.Hour || out.Delay > 3*time.Hour+18*time.Minute {
			t.Fatalf("%+v", out)
		}
		if len(book.lines(t, "retry_policy_panicked")) != 1 {
			t.Errorf("log: %s", book)
		}
	})
}

func TestLadder(t *testing.T) {
	t.Parallel()

	t.Run("every delay is its step plus at most a tenth, and the last step repeats", rapid.MakeCheck(func(t *rapid.T) {
		steps := rapid.SliceOfN(rapid.Int64Range(-10, int64(9*365*24*time.Hour)), 1, 12).Draw(t, "steps")
		ladder := make([]time.Duration, len(steps))
		for i, s := range steps {
			ladder[i] = time.Duration(s)
		}
		attempt := rapid.IntRange(1, 20).Draw(t, "attempt")
		step := max(ladder[min(attempt, len(ladder))-1], 0)
		if d, ok := dispatch.Ladder(ladder...).Delay(attempt); !ok || d < step || d > step+step/10 {
			t.Fatalf("%s %v for step %s", d, ok, step)
		}
	}))

	t.Run("the largest step does not overflow", func(t *testing.T) {
		t.Parallel()
		if d, ok := dispatch.Ladder(1<<63 - 1).Delay(1); !ok || d < 10*365*24*time.Hour {
			t.Fatalf("%s %v", d, ok)
		}
	})
}
