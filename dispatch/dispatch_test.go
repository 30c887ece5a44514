package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

var errBoom = errors.New("boom")

func TestWhatAHandlerReturnsDecides(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		h     dispatch.HandlerFunc
		kind  dispatch.Kind
		delay time.Duration
		err   string
	}{
		{name: "nil publishes", h: succeed, kind: dispatch.Published},
		{name: "an error retries by the policy", h: failWith(errBoom), kind: dispatch.Retry, delay: time.Minute, err: "mail: boom"},
		{name: "a context error without a shutdown is an error", h: failWith(context.Canceled), kind: dispatch.Retry, delay: time.Minute, err: "mail: context canceled"},
		{name: "a panic is an error", h: func(context.Context, *event.Event) error { panic("at the disco") }, kind: dispatch.Retry, delay: time.Minute, err: "mail: panic: at the disco"},
		{name: "a panic with an error is an error", h: func(context.Context, *event.Event) error { panic(errBoom) }, kind: dispatch.Retry, delay: time.Minute, err: "mail: panic: boom"},
		{name: "a nil pointer is an error", h: func(_ context.Context, e *event.Event) error { var p *event.Event; *p = *e; return nil }, kind: dispatch.Retry, delay: time.Minute, err: "mail: panic: runtime error: invalid memory address or nil pointer dereference"},
		{name: "Goexit is an error", h: func(context.Context, *event.Event) error { runtime.Goexit(); return nil }, kind: dispatch.Retry, delay: time.Minute, err: "mail: handler ended its goroutine (runtime.Goexit)"},
		{name: "an error whose methods panic is an error", h: failWith(hostileError{}), kind: dispatch.Retry, delay: time.Minute, err: "mail: panic: unwrap"},
		{name: "Permanent is dead", h: failWith(dispatch.Permanent(errBoom)), kind: dispatch.Dead, err: "mail: boom"},
		{name: "a wrapped Permanent is dead", h: failWith(fmt.Errorf("send: %w", dispatch.Permanent(errBoom))), kind: dispatch.Dead, err: "mail: send: boom"},
		{name: "a joined Permanent is dead", h: failWith(errors.Join(errors.New("other"), dispatch.Permanent(errBoom))), kind: dispatch.Dead, err: "mail: other\nboom"},
		{name: "backoff.Permanent is dead", h: failWith(fmt.Errorf("send: %w", backoff.Permanent(errBoom))), kind: dispatch.Dead, err: "mail: send: boom"},
		{name: "RetryAfter sets the delay", h: failWith(dispatch.RetryAfter(7*time.Second, errBoom)), kind: dispatch.Retry, delay: 7 * time.Second, err: "mail: boom"},
		{name: "a wrapped RetryAfter sets the delay", h: failWith(fmt.Errorf("send: %w", dispatch.RetryAfter(7*time.Second, errBoom))), kind: dispatch.Retry, delay: 7 * time.Second, err: "mail: send: boom"},
		{name: "a negative RetryAfter asks for nothing", h: failWith(dispatch.RetryAfter(-time.Hour, errBoom)), kind: dispatch.Retry, delay: time.Minute, err: "mail: boom"},
		{name: "nor does one of zero", h: failWith(dispatch.RetryAfter(0, errBoom)), kind: dispatch.Retry, delay: time.Minute, err: "mail: boom"},
		{name: "RetryAfter is capped at ten years", h: failWith(dispatch.RetryAfter(1<<63-1, errBoom)), kind: dispatch.Retry, delay: 10 * 365 * 24 * time.Hour, err: "mail: boom"},
		{name: "Permanent outweighs RetryAfter", h: failWith(dispatch.RetryAfter(time.Second, dispatch.Permanent(errBoom))), kind: dispatch.Dead, err: "mail: boom"},
		{name: "Permanent of nothing publishes", h: failWith(dispatch.Permanent(nil)), kind: dispatch.Published},
		{name: "RetryAfter of nothing publishes", h: failWith(dispatch.RetryAfter(time.Second, nil)), kind: dispatch.Published},
		{name: "an error text that PostgreSQL refuses is cleaned", h: failWith(errors.New("a\x00b\xffc")), kind: dispatch.Retry, delay: time.Minute, err: "mail: ab\uFFFDc"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newDispatcher(t, dispatch.Config{Retry: oneMinute()})
			subscribe(t, d, "mail", tc.h)
			out := d.Dispatch(t.Context(), delivery())
			if out.Kind != tc.kind || out.Delay != tc.delay || out.Error != tc.err {
				t.Fatalf("got %s %s %q, want %s %s %q", out.Kind, out.Delay, out.Error, tc.kind, tc.delay, tc.err)
			}
		})
	}
}

type hostileError struct{}

func (hostileError) Error() string { panic("error") }
func (hostileError) Unwrap() error { panic("unwrap") }

func TestTheHandlersContext(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t, dispatch.Config{Timeout: time.Hour})
	dl := delivery()
	subscribe(t, d, "a", func(ctx context.Context, e *event.Event) error {
		if carried, ok := event.FromContext(ctx); !ok || carried != dl.Event || e != dl.Event {
			t.Error("the context does not carry the event")
		}
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Hour {
			t.Errorf("the deadline is %v (%v)", deadline, ok)
		}
		return nil
	})
	d.Dispatch(t.Context(), dl)
}

func TestAttempts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		maxAttempts int
		retryCount  int
		err         error
		kind        dispatch.Kind
	}{
		{"the ninth failure retries", 0, 8, errBoom, dispatch.Retry},
		{"the tenth failure is dead", 0, 9, errBoom, dispatch.Dead},
		{"RetryAfter consumes an attempt", 0, 9, dispatch.RetryAfter(time.Second, errBoom), dispatch.Dead},
		{"a redriven event that fails is dead again", 0, 14, errBoom, dispatch.Dead},
		{"a redriven event that succeeds is published", 0, 14, nil, dispatch.Published},
		{"the only failure is dead with one attempt", 1, 0, errBoom, dispatch.Dead},
		{"more attempts than the ladder has steps", 20, 18, errBoom, dispatch.Retry},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newDispatcher(t, dispatch.Config{MaxAttempts: tc.maxAttempts})
			subscribe(t, d, "a", failWith(tc.err))
			out := d.Dispatch(t.Context(), dispatch.Delivery{Event: newEvent(), RetryCount: tc.retryCount})
			if out.Kind != tc.kind {
				t.Fatalf("%+v", out)
			}
		})
	}
}

func TestSeveralSubscribers(t *testing.T) {
	t.Parallel()
	type subs map[string]error
	permanent := dispatch.Permanent(errBoom)
	for _, tc := range []struct {
		name       string
		returns    subs
		retryCount int
		delivered  []string
		dead       []string
		want       dispatch.Outcome
		called     []string
	}{
		{
			name:    "all succeed",
			returns: subs{"a": nil, "b": nil}, called: []string{"a", "b"},
			want: dispatch.Outcome{Kind: dispatch.Published},
		},
		{
			name:    "one fails: what succeeded is kept",
			returns: subs{"a": nil, "b": errBoom}, called: []string{"a", "b"},
			want: dispatch.Outcome{Kind: dispatch.Retry, Delay: time.Minute, Error: "b: boom", Delivered: []string{"a"}},
		},
		{
			name:    "the retry calls only the one that failed",
			returns: subs{"a": errBoom, "b": nil}, retryCount: 1, delivered: []string{"a"}, called: []string{"b"},
			want: dispatch.Outcome{Kind: dispatch.Published},
		},
		{
			name:    "nothing is left to call",
			returns: subs{"a": errBoom}, retryCount: 1, delivered: []string{"a"},
			want: dispatch.Outcome{Kind: dispatch.Published},
		},
		{
			name:    "one fails for good, another may retry",
			returns: subs{"a": nil, "b": permanent, "c": errBoom}, called: []string{"a", "b", "c"},
			want: dispatch.Outcome{Kind: dispatch.Retry, Delay: time.Minute, Error: "b: boom; c: boom", Delivered: []string{"a"}, Dead: []string{"b"}},
		},
		{
			name:    "the one that failed for good is not called again, and the event is dead when the rest is done",
			returns: subs{"a": nil, "b": nil, "c": nil}, retryCount: 1, delivered: []string{"a"}, dead: []string{"b"}, called: []string{"c"},
			want: dispatch.Outcome{Kind: dispatch.Dead, Error: "b: failed permanently in an earlier attempt", Delivered: []string{"c"}},
		},
		{
			name:    "none can retry",
			returns: subs{"a": nil, "b": permanent}, called: []string{"a", "b"},
			want: dispatch.Outcome{Kind: dispatch.Dead, Error: "b: boom", Delivered: []string{"a"}, Dead: []string{"b"}},
		},
		{
			name:    "the attempts are used up: only those that failed for good are listed as dead",
			returns: subs{"a": nil, "b": permanent, "c": errBoom}, retryCount: 9, called: []string{"a", "b", "c"},
			want: dispatch.Outcome{Kind: dispatch.Dead, Error: "b: boom; c: boom", Delivered: []string{"a"}, Dead: []string{"b"}},
		},
		{
			name:    "redriven: those that failed for good get another chance",
			returns: subs{"a": nil, "b": nil}, retryCount: 10, delivered: []string{"a"}, dead: []string{"b"}, called: []string{"b"},
			want: dispatch.Outcome{Kind: dispatch.Published},
		},
		{
			name:    "only those that failed for good are left, so it was redriven",
			returns: subs{"a": nil, "b": nil}, retryCount: 3, delivered: []string{"a"}, dead: []string{"b"}, called: []string{"b"},
			want: dispatch.Outcome{Kind: dispatch.Published},
		},
		{
			name:    "a subscriber that exists no more is ignored",
			returns: subs{"a": nil}, retryCount: 1, delivered: []string{"gone"}, dead: []string{"gone too"}, called: []string{"a"},
			want: dispatch.Outcome{Kind: dispatch.Published},
		},
		{
			name:    "the longest RetryAfter wins over the others and the policy",
			returns: subs{"a": dispatch.RetryAfter(time.Second, errBoom), "b": dispatch.RetryAfter(3*time.Second, errBoom), "c": errBoom}, called: []string{"a", "b", "c"},
			want: dispatch.Outcome{Kind: dispatch.Retry, Delay: 3 * time.Second, Error: "a: boom; b: boom; c: boom"},
		},
		{
			name:    "a failure for good does not set the delay",
			returns: subs{"a": dispatch.Permanent(dispatch.RetryAfter(time.Hour, errBoom)), "b": errBoom}, called: []string{"a", "b"},
			want: dispatch.Outcome{Kind: dispatch.Retry, Delay: time.Minute, Error: "a: boom; b: boom", Dead: []string{"a"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newDispatcher(t, dispatch.Config{Retry: oneMinute()})
			var mu sync.Mutex
			var called []string
			for _, name := range []string{"a", "b", "c"} {
				err, registered := tc.returns[name]
				if !registered {
					continue
				}
				subscribe(t, d, name, func(context.Context, *event.Event) error {
					mu.Lock()
					defer mu.Unlock()
					called = append(called, name)
					return err
				})
			}
			out := d.Dispatch(t.Context(), dispatch.Delivery{Event: newEvent(), RetryCount: tc.retryCount, Delivered: tc.delivered, Dead: tc.dead})
			slices.Sort(called)
			if !slices.Equal(called, tc.called) {
				t.Errorf("called %v, want %v", called, tc.called)
			}
			if fmt.Sprintf("%+v", out) != fmt.Sprintf("%+v", tc.want) {
				t.Errorf("got  %+v\nwant %+v", out, tc.want)
			}
		})
	}
}

func TestSubscribersOfOneEventRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t, dispatch.Config{Timeout: time.Minute})
	var met sync.WaitGroup
	met.Add(3)
	for _, name := range []string{"a", "b", "c"} {
		subscribe(t, d, name, func(ctx context.Context, _ *event.Event) error {
			met.Done()
			all := make(chan struct{})
			go func() { met.Wait(); close(all) }()
			select {
			case <-all:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
	if out := d.Dispatch(t.Context(), delivery()); out.Kind != dispatch.Published {
		t.Fatalf("they did not meet: %+v", out)
	}
}

func TestACrashOfOneSubscriberLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t, dispatch.Config{})
	subscribe(t, d, "panics", func(context.Context, *event.Event) error { panic("x") })
	subscribe(t, d, "exits", func(context.Context, *event.Event) error { runtime.Goexit(); return nil })
	subscribe(t, d, "works", succeed)
	out := d.Dispatch(t.Context(), delivery())
	if out.Kind != dispatch.Retry || !slices.Equal(out.Delivered, []string{"works"}) {
		t.Fatalf("%+v", out)
	}
}

func TestNoSubscriberIsALoudErrorThatRetries(t *testing.T) {
	t.Parallel()
	book := &logBook{}
	d := newDispatcher(t, dispatch.Config{Retry: oneMinute(), Log: book.logger()})
	if err := d.Subscribe("Other", "a", dispatch.HandlerFunc(succeed)); err != nil {
		t.Fatal(err)
	}
	out := d.Dispatch(t.Context(), delivery())
	if out.Kind != dispatch.Retry || out.Delay != time.Minute {
		t.Fatalf("%+v", out)
	}
	for _, want := range []string{`"PaymentSucceeded"`, "EVERY replica", "SAME subscribers"} {
		if !strings.Contains(out.Error, want) {
			t.Errorf("%q does not say %q", out.Error, want)
		}
	}
	if len(book.lines(t, "event_failed")) != 1 {
		t.Errorf("log: %s", book)
	}
	if out := d.Dispatch(t.Context(), dispatch.Delivery{Event: newEvent(), RetryCount: 9}); out.Kind != dispatch.Dead {
		t.Errorf("the tenth time: %+v", out)
	}
}

func TestConcurrentEventsKeepTheirResultsApart(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t, dispatch.Config{Retry: policyFunc(func(int) (time.Duration, bool) { return 0, true })})
	for _, name := range []string{"a", "b"} {
		subscribe(t, d, name, func(_ context.Context, e *event.Event) error {
			switch e.ID % 4 {
			case 0:
				return nil
			case 1:
				panic(e.ID)
			default:
				return fmt.Errorf("event %d", e.ID)
			}
		})
	}
	var wg sync.WaitGroup
	for worker := range int64(8) {
		wg.Go(func() {
			for i := range int64(200) {
				e := newEvent()
				e.ID = worker*1000 + i
				want := ""
				switch e.ID % 4 {
				case 0:
				case 1:
					want = fmt.Sprintf("a: panic: %d; b: panic: %d", e.ID, e.ID)
				default:
					want = fmt.Sprintf("a: event %d; b: event %d", e.ID, e.ID)
				}
				if out := d.Dispatch(t.Context(), dispatch.Delivery{Event: e}); out.Error != want {
					t.Errorf("got %q, want %q", out.Error, want)
				}
			}
		})
	}
	wg.Wait()
}

func TestLog(t *testing.T) {
	t.Parallel()

	run := func(t *testing.T, retryCount int, handlers map[string]dispatch.HandlerFunc) (*logBook, *event.Event) {
		t.Helper()
		book := &logBook{}
		d := newDispatcher(t, dispatch.Config{Retry: oneMinute(), Log: book.logger()})
		for name, h := range handlers {
			subscribe(t, d, name, h)
		}
		e := newEvent()
		d.Dispatch(t.Context(), dispatch.Delivery{Event: e, RetryCount: retryCount})
		if strings.Contains(book.String(), "payload") {
			t.Errorf("the payload is in the log: %s", book)
		}
		return book, e
	}
	fields := func(t *testing.T, line map[string]any, want map[string]any) {
		t.Helper()
		for name, value := range want {
			if fmt.Sprint(line[name]) != fmt.Sprint(value) {
				t.Errorf("%s is %v, want %v", name, line[name], value)
			}
		}
	}

	t.Run("a success is silent", func(t *testing.T) {
		t.Parallel()
		book, _ := run(t, 0, map[string]dispatch.HandlerFunc{"a": succeed})
		if book.String() != "" {
			t.Errorf("log: %s", book)
		}
	})

	t.Run("a failed attempt is one warning with the facts", func(t *testing.T) {
		t.Parallel()
		book, e := run(t, 2, map[string]dispatch.HandlerFunc{"a": failWith(errBoom), "b": succeed})
		lines := book.lines(t, "event_failed")
		if len(lines) != 1 || strings.Count(book.String(), "\n") != 1 {
			t.Fatalf("log: %s", book)
		}
		fields(t, lines[0], map[string]any{
			"level": "warn", "event_id": 42, "public_id": e.PublicID, "event_type": eventType,
			"aggregate": "subscription/" + e.AggregateID.String(), "attempt": 3,
			"subscribers": []string{"a"}, "error": "a: boom", "retry_in": "1m0s",
		})
	})

	t.Run("a dead event is one error", func(t *testing.T) {
		t.Parallel()
		book, _ := run(t, 9, map[string]dispatch.HandlerFunc{"a": failWith(errBoom)})
		lines := book.lines(t, "event_dead")
		if len(lines) != 1 || strings.Count(book.String(), "\n") != 1 {
			t.Fatalf("log: %s", book)
		}
		fields(t, lines[0], map[string]any{"level": "error", "attempt": 10, "error": "a: boom"})
	})

	t.Run("a panic's stack is there once", func(t *testing.T) {
		t.Parallel()
		book, _ := run(t, 0, map[string]dispatch.HandlerFunc{"a": panicsDeepInside})
		lines := book.lines(t, "handler_panicked")
		if len(lines) != 1 || len(book.lines(t, "event_failed")) != 1 || strings.Count(book.String(), "panicsDeepInside") != 1 {
			t.Fatalf("log: %s", book)
		}
		fields(t, lines[0], map[string]any{"level": "error", "event_id": 42, "subscriber": "a", "error": "panic: deep"})
		if _, err := json.Marshal(lines[0]["stack"]); err != nil || !strings.Contains(fmt.Sprint(lines[0]["stack"]), "panicsDeepInside") {
			t.Errorf("stack: %v", lines[0]["stack"])
		}
	})
}

func panicsDeepInside(context.Context, *event.Event) error { panic("deep") }
