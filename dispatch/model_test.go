package dispatch_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

// life is the model: what an event's row and its marks say between two attempts. It knows
// whether a person has redriven the event; the dispatcher has to find out.
type life struct {
	retryCount      int
	delivered, dead map[string]bool
	redriven        bool
}

// settle takes in an attempt that failed. A dead event is redriven at once.
func (l *life) settle(out dispatch.Outcome) {
	for _, s := range out.Delivered {
		l.delivered[s] = true
	}
	for _, s := range out.Dead {
		l.dead[s] = true
	}
	l.retryCount++
	l.redriven = out.Kind == dispatch.Dead
	if l.redriven {
		l.retryCount = max(l.retryCount, 10) // a dead row is one with retry_count ≥ 10
	}
}

// TestLifeOfAnEvent drives events with random subscribers through random attempts, until
// they are published, and compares who is called and what comes out with the model.
func TestLifeOfAnEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			subscribers = rapid.IntRange(1, 6).Draw(t, "subscribers")
			maxAttempts = rapid.IntRange(1, 10).Draw(t, "max attempts")
			givesUpAt   = rapid.IntRange(1, 12).Draw(t, "policy gives up at")
			wildcards   = rapid.IntRange(0, subscribers).Draw(t, "wildcards")
		)
		d, err := dispatch.New(dispatch.Config{MaxAttempts: maxAttempts, Retry: policyFunc(func(attempt int) (time.Duration, bool) {
			return time.Duration(attempt) * time.Minute, attempt < givesUpAt
		})})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		returns, called := map[string]string{}, map[string]int{}
		for i := range subscribers {
			name, of := fmt.Sprintf("s%d", i), eventType
			if i < wildcards {
				of = dispatch.AnyType
			}
			err := d.Subscribe(of, name, dispatch.HandlerFunc(func(context.Context, *event.Event) error {
				mu.Lock()
				called[name]++
				what := returns[name]
				mu.Unlock()
				return behave(what)
			}))
			if err != nil {
				t.Fatal(err)
			}
			returns[name] = ""
		}
		names := slices.Sorted(maps.Keys(returns))

		l := life{delivered: map[string]bool{}, dead: map[string]bool{}}
		for range 16 {
			clear(called)
			for _, name := range names {
				returns[name] = rapid.SampledFrom(behaviours).Draw(t, name)
			}
			out := d.Dispatch(context.Background(), dispatch.Delivery{
				Event: newEvent(), RetryCount: l.retryCount,
				Delivered: slices.Sorted(maps.Keys(l.delivered)), Dead: slices.Sorted(maps.Keys(l.dead)),
			})
			want, calls := expect(l, names, returns, maxAttempts, givesUpAt)
			if !maps.Equal(called, calls) {
				t.Fatalf("called %v, want %v (%+v)", called, calls, l)
			}
			out.Error = ""
			if fmt.Sprintf("%+v", out) != fmt.Sprintf("%+v", want) {
				t.Fatalf("got %+v, want %+v (%+v)", out, want, l)
			}
			if out.Kind == dispatch.Published {
				return
			}
			l.settle(out)
		}
	})
}

var behaviours = []string{"ok", "fail", "panic", "permanent", "backoff permanent", "after 1s", "after 1h"}

func behave(what string) error {
	switch what {
	case "ok":
		return nil
	case "panic":
		panic("x")
	case "permanent":
		return fmt.Errorf("wrapped: %w", dispatch.Permanent(errBoom))
	case "backoff permanent":
		return backoff.Permanent(errBoom)
	case "after 1s":
		return dispatch.RetryAfter(time.Second, errBoom)
	case "after 1h":
		return dispatch.RetryAfter(time.Hour, errBoom)
	default:
		return errBoom
	}
}

// expect says, by the rules for outcomes, who is called and what comes out.
func expect(l life, names []string, returns map[string]string, maxAttempts, givesUpAt int) (dispatch.Outcome, map[string]int) {
	calls := map[string]int{}
	unfinished, canRetry := 0, false
	attempt := l.retryCount + 1
	var out dispatch.Outcome
	var asked time.Duration
	for _, name := range names {
		if l.delivered[name] {
			continue
		}
		if l.dead[name] && !l.redriven {
			unfinished++
			continue
		}
		calls[name] = 1
		switch returns[name] {
		case "ok":
			out.Delivered = append(out.Delivered, name)
			continue
		case "permanent", "backoff permanent":
			out.Dead = append(out.Dead, name)
		case "after 1s":
			canRetry, asked = true, max(asked, time.Second)
		case "after 1h":
			canRetry, asked = true, max(asked, time.Hour)
		default:
			canRetry = true
		}
		unfinished++
	}
	switch {
	case unfinished == 0:
		return dispatch.Outcome{Kind: dispatch.Published}, calls
	case canRetry && attempt < maxAttempts && asked > 0:
		out.Kind, out.Delay = dispatch.Retry, asked
	case canRetry && attempt < maxAttempts && attempt < givesUpAt:
		out.Kind, out.Delay = dispatch.Retry, time.Duration(attempt)*time.Minute
	default:
		out.Kind = dispatch.Dead
	}
	return out, calls
}
