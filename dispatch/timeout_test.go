package dispatch_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

// The tests of this file run on synctest's clock: nothing is waited for in real time.

func untilCancelled(ctx context.Context, _ *event.Event) error {
	<-ctx.Done()
	return ctx.Err()
}

// deafFor ignores its context for d and then returns err.
func deafFor(d time.Duration, err error) dispatch.HandlerFunc {
	return func(context.Context, *event.Event) error {
		time.Sleep(d)
		return err
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()

	t.Run("is a failure that says so", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			book := &logBook{}
			d := newDispatcher(t, dispatch.Config{Retry: oneMinute(), Timeout: 5 * time.Second, Log: book.logger()})
			subscribe(t, d, "a", untilCancelled)
			began := time.Now()
			out := d.Dispatch(t.Context(), delivery())
			if took := time.Since(began); took != 5*time.Second {
				t.Errorf("took %s", took)
			}
			if out.Kind != dispatch.Retry || out.Error != "a: timed out after 5s: context deadline exceeded" {
				t.Errorf("%+v", out)
			}
			if n := len(book.lines(t, "handler_exceeds_its_timeout")); n != 0 {
				t.Errorf("a handler that obeys was warned about %d times", n)
			}
		})
	})

	t.Run("defaults to 30 s", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, dispatch.Config{})
			subscribe(t, d, "a", untilCancelled)
			if out := d.Dispatch(t.Context(), delivery()); !strings.Contains(out.Error, "timed out after 30s") {
				t.Errorf("%+v", out)
			}
		})
	})

	t.Run("belongs to the subscriber", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, dispatch.Config{Timeout: time.Second})
			subscribe(t, d, "short", deafFor(2*time.Second, errBoom))
			subscribe(t, d, "long", func(ctx context.Context, _ *event.Event) error {
				select {
				case <-time.After(3 * time.Second):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}, dispatch.WithTimeout(time.Minute))
			out := d.Dispatch(t.Context(), delivery())
			if out.Error != "short: timed out after 1s: boom" || len(out.Delivered) != 1 {
				t.Errorf("%+v", out)
			}
		})
	})

	t.Run("does not soften a permanent error", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, dispatch.Config{Timeout: time.Second})
			subscribe(t, d, "a", deafFor(2*time.Second, dispatch.Permanent(errBoom)))
			if out := d.Dispatch(t.Context(), delivery()); out.Kind != dispatch.Dead {
				t.Errorf("%+v", out)
			}
		})
	})
}

func TestAHandlerThatIgnoresItsTimeout(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		returns error
		kind    dispatch.Kind
	}{
		"is waited for, warned about once, and succeeds if it succeeds": {nil, dispatch.Published},
		"is waited for, warned about once, and fails if it fails":       {errBoom, dispatch.Retry},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				book := &logBook{}
				d := newDispatcher(t, dispatch.Config{Timeout: time.Second, Log: book.logger()})
				subscribe(t, d, "deaf", deafFor(time.Hour, tc.returns))
				began := time.Now()
				out := d.Dispatch(t.Context(), delivery())
				if took := time.Since(began); took != time.Hour {
					t.Errorf("Dispatch returned after %s", took)
				}
				if out.Kind != tc.kind {
					t.Errorf("%+v", out)
				}
				lines := book.lines(t, "handler_exceeds_its_timeout")
				if len(lines) != 1 || lines[0]["subscriber"] != "deaf" || lines[0]["timeout"] != "1s" || lines[0]["event_id"] != 42.0 {
					t.Errorf("log: %s", book)
				}
			})
		})
	}

	t.Run("is warned about while it still runs", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			book := &logBook{}
			d := newDispatcher(t, dispatch.Config{Timeout: time.Second, Log: book.logger()})
			release := make(chan struct{})
			subscribe(t, d, "stuck", func(context.Context, *event.Event) error { <-release; return nil })
			go d.Dispatch(t.Context(), delivery())
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(book.lines(t, "handler_exceeds_its_timeout")) != 1 {
				t.Errorf("log: %s", book)
			}
			close(release)
		})
	})

	t.Run("does not disturb the events that follow", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			book := &logBook{}
			d := newDispatcher(t, dispatch.Config{Timeout: time.Second, Log: book.logger()})
			subscribe(t, d, "a", func(_ context.Context, e *event.Event) error {
				if e.ID%2 == 1 {
					time.Sleep(time.Minute)
				}
				return nil
			})
			for id := range int64(20) {
				e := newEvent()
				e.ID = id
				if out := d.Dispatch(t.Context(), dispatch.Delivery{Event: e}); out.Kind != dispatch.Published {
					t.Fatalf("event %d: %+v", id, out)
				}
			}
			lines := book.lines(t, "handler_exceeds_its_timeout")
			if len(lines) != 10 {
				t.Fatalf("%d warnings", len(lines))
			}
			for i, line := range lines {
				if line["event_id"] != float64(2*i+1) {
					t.Errorf("warning %d is about event %v", i, line["event_id"])
				}
			}
		})
	})
}

func TestShutdown(t *testing.T) {
	t.Parallel()

	// In each case the shutdown comes after ten seconds and the default timeout is a minute.
	for _, tc := range []struct {
		name     string
		handlers map[string]dispatch.HandlerFunc
		timeout  time.Duration // of subscriber "a"; 0 = a minute
		kind     dispatch.Kind
	}{
		{name: "a handler cut off leaves the event untouched", handlers: map[string]dispatch.HandlerFunc{"a": untilCancelled}, kind: dispatch.Untouched},
		{name: "an error that hides the cancellation does so too", handlers: map[string]dispatch.HandlerFunc{"a": deafFor(11*time.Second, errBoom)}, kind: dispatch.Untouched},
		{name: "a permanent error after the cancellation does so too", handlers: map[string]dispatch.HandlerFunc{"a": deafFor(11*time.Second, dispatch.Permanent(errBoom))}, kind: dispatch.Untouched},
		{name: "a panic after the cancellation does so too", handlers: map[string]dispatch.HandlerFunc{"a": func(ctx context.Context, _ *event.Event) error { <-ctx.Done(); panic("x") }}, kind: dispatch.Untouched},
		{name: "a handler that succeeds all the same publishes", handlers: map[string]dispatch.HandlerFunc{"a": deafFor(11*time.Second, nil)}, kind: dispatch.Published},
		{name: "an error before the cancellation counts", handlers: map[string]dispatch.HandlerFunc{"a": deafFor(9*time.Second, errBoom)}, kind: dispatch.Retry},
		{name: "an own timeout before the cancellation counts", handlers: map[string]dispatch.HandlerFunc{"a": deafFor(11*time.Second, errBoom)}, timeout: 5 * time.Second, kind: dispatch.Retry},
		{name: "one subscriber cut off leaves the event untouched, whatever became of the others", handlers: map[string]dispatch.HandlerFunc{"a": untilCancelled, "b": failWith(errBoom), "c": failWith(dispatch.Permanent(errBoom)), "d": succeed}, kind: dispatch.Untouched},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				book := &logBook{}
				d := newDispatcher(t, dispatch.Config{Timeout: time.Minute, Log: book.logger()})
				for name, h := range tc.handlers {
					if name == "a" && tc.timeout > 0 {
						subscribe(t, d, name, h, dispatch.WithTimeout(tc.timeout))
					} else {
						subscribe(t, d, name, h)
					}
				}
				ctx, shutdown := context.WithCancelCause(t.Context())
				defer time.AfterFunc(10*time.Second, func() { shutdown(errors.New("shutting down")) }).Stop()
				out := d.Dispatch(ctx, delivery())
				if out.Kind != tc.kind {
					t.Fatalf("%+v", out)
				}
				if out.Kind == dispatch.Untouched {
					if out.Delivered != nil || out.Dead != nil || out.Delay != 0 {
						t.Errorf("untouched, but with something to settle: %+v", out)
					}
					if len(book.lines(t, "event_interrupted")) != 1 || len(book.lines(t, "event_failed")) != 0 {
						t.Errorf("log: %s", book)
					}
				}
			})
		})
	}

	t.Run("nothing is called once it has begun", func(t *testing.T) {
		t.Parallel()
		d := newDispatcher(t, dispatch.Config{})
		subscribe(t, d, "a", func(context.Context, *event.Event) error {
			t.Error("called")
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if out := d.Dispatch(ctx, delivery()); out.Kind != dispatch.Untouched {
			t.Fatalf("%+v", out)
		}
	})

	t.Run("a deadline of the caller's that is earlier than the timeout is a shutdown", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, dispatch.Config{Timeout: time.Minute})
			subscribe(t, d, "a", untilCancelled)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if out := d.Dispatch(ctx, delivery()); out.Kind != dispatch.Untouched {
				t.Fatalf("%+v", out)
			}
		})
	})
}
