package dispatch_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

func TestNewReportsEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := dispatch.New(dispatch.Config{MaxAttempts: -1, Timeout: -1, Retry: dispatch.BackOff(nil)})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, field := range []string{"MaxAttempts", "Timeout", "Retry"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

func TestSubscribeRefuses(t *testing.T) {
	t.Parallel()
	ok := dispatch.HandlerFunc(succeed)
	for _, tc := range []struct {
		name             string
		eventType, sub   string
		handler          dispatch.Handler
		opts             []dispatch.SubscribeOption
		everyOneMentions []string
	}{
		{name: "an empty event type", sub: "a", handler: ok, everyOneMentions: []string{"event type is empty"}},
		{name: "an empty subscriber", eventType: "T", handler: ok, everyOneMentions: []string{"subscriber is empty"}},
		{name: "a nil handler", eventType: "T", sub: "a", everyOneMentions: []string{"handler is nil"}},
		{name: "a nil function", eventType: "T", sub: "a", handler: dispatch.HandlerFunc(nil), everyOneMentions: []string{"handler is nil"}},
		{name: "a typed handler of a nil function", eventType: "T", sub: "a", handler: dispatch.Typed[int](nil), everyOneMentions: []string{"handler is nil"}},
		{name: "a name of 201 bytes", eventType: "T", sub: strings.Repeat("x", 201), handler: ok, everyOneMentions: []string{"201 bytes"}},
		{name: "a name that is not UTF-8", eventType: "T", sub: "a\xff", handler: ok, everyOneMentions: []string{"UTF-8"}},
		{name: "a name with NUL", eventType: "T", sub: "a\x00", handler: ok, everyOneMentions: []string{"NUL"}},
		{name: "a timeout of zero", eventType: "T", sub: "a", handler: ok, opts: []dispatch.SubscribeOption{dispatch.WithTimeout(0)}, everyOneMentions: []string{"timeout"}},
		{name: "everything at once", everyOneMentions: []string{"event type", "subscriber", "handler"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := newDispatcher(t, dispatch.Config{}).Subscribe(tc.eventType, tc.sub, tc.handler, tc.opts...)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tc.everyOneMentions {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not mention %q", err, want)
				}
			}
		})
	}
}

func TestSubscribeNames(t *testing.T) {
	t.Parallel()
	type registration struct{ eventType, name string }
	for _, tc := range []struct {
		name          string
		first, second registration
		accepted      bool
	}{
		{"two names of one type", registration{"T", "a"}, registration{"T", "b"}, true},
		{"one name for two types", registration{"T", "a"}, registration{"U", "a"}, true},
		{"two names for every type", registration{"*", "a"}, registration{"*", "b"}, true},
		{"the same twice", registration{"T", "a"}, registration{"T", "a"}, false},
		{"every type twice", registration{"*", "a"}, registration{"*", "a"}, false},
		{"a type, then every type", registration{"T", "a"}, registration{"*", "a"}, false},
		{"every type, then a type", registration{"*", "a"}, registration{"T", "a"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newDispatcher(t, dispatch.Config{})
			if err := d.Subscribe(tc.first.eventType, tc.first.name, dispatch.HandlerFunc(succeed)); err != nil {
				t.Fatal(err)
			}
			err := d.Subscribe(tc.second.eventType, tc.second.name, dispatch.HandlerFunc(succeed))
			if accepted := err == nil; accepted != tc.accepted {
				t.Fatalf("accepted %v: %v", accepted, err)
			}
		})
	}
}

func TestAnEventGoesToTheSubscribersOfItsTypeAndOfEveryType(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t, dispatch.Config{})
	var mu sync.Mutex
	var called []string
	note := func(name string) dispatch.Handler {
		return dispatch.HandlerFunc(func(context.Context, *event.Event) error {
			mu.Lock()
			defer mu.Unlock()
			called = append(called, name)
			return nil
		})
	}
	for _, s := range [][2]string{{"A", "only-a"}, {dispatch.AnyType, "all"}, {"B", "only-b"}, {"A", "too-a"}} {
		if err := d.Subscribe(s[0], s[1], note(s[1])); err != nil {
			t.Fatal(err)
		}
	}
	for eventType, want := range map[string][]string{
		"A": {"all", "only-a", "too-a"},
		"B": {"all", "only-b"},
		"C": {"all"},
		"*": {"all"},
	} {
		called = nil
		e := newEvent()
		e.Type = eventType
		if out := d.Dispatch(t.Context(), dispatch.Delivery{Event: e}); out.Kind != dispatch.Published {
			t.Fatalf("%s: %+v", eventType, out)
		}
		slices.Sort(called)
		if !slices.Equal(called, want) {
			t.Errorf("%s went to %v, want %v", eventType, called, want)
		}
	}
}

func TestMiddleware(t *testing.T) {
	t.Parallel()

	trace := func(seen *[]string, name string) dispatch.Middleware {
		return func(next dispatch.Handler) dispatch.Handler {
			*seen = append(*seen, "wrap "+name)
			return dispatch.HandlerFunc(func(ctx context.Context, e *event.Event) error {
				*seen = append(*seen, name)
				return next.Handle(ctx, e)
			})
		}
	}

	t.Run("wraps handlers of earlier and later registration, the first outermost, once and not for each event", func(t *testing.T) {
		t.Parallel()
		var seen []string
		d := newDispatcher(t, dispatch.Config{})
		d.Use(trace(&seen, "outer"))
		subscribe(t, d, "a", func(context.Context, *event.Event) error {
			seen = append(seen, "handler")
			return nil
		})
		d.Use(nil, trace(&seen, "inner"))
		d.Dispatch(t.Context(), delivery())
		d.Dispatch(t.Context(), delivery())
		want := []string{"wrap inner", "wrap outer", "outer", "inner", "handler", "outer", "inner", "handler"}
		if !slices.Equal(seen, want) {
			t.Fatalf("got %v, want %v", seen, want)
		}
	})

	t.Run("learns whose handler it wraps, wherever it stands", func(t *testing.T) {
		t.Parallel()
		var seen []string
		name := func(next dispatch.Handler) dispatch.Handler {
			seen = append(seen, dispatch.SubscriberOf(next))
			return dispatch.HandlerFunc(next.Handle)
		}
		d := newDispatcher(t, dispatch.Config{})
		d.Use(name, name)
		subscribe(t, d, "a", succeed)
		subscribe(t, d, "b", succeed)
		d.Dispatch(t.Context(), delivery())
		if want := []string{"a", "a", "b", "b"}; !slices.Equal(seen, want) {
			t.Errorf("got %v, want %v", seen, want)
		}
		if got := dispatch.SubscriberOf(dispatch.HandlerFunc(succeed)); got != "" {
			t.Errorf("a handler of nobody is that of %q", got)
		}
	})

	t.Run("can change the outcome", func(t *testing.T) {
		t.Parallel()
		d := newDispatcher(t, dispatch.Config{})
		d.Use(func(next dispatch.Handler) dispatch.Handler {
			return dispatch.HandlerFunc(func(ctx context.Context, e *event.Event) error {
				return dispatch.Permanent(next.Handle(ctx, e))
			})
		})
		subscribe(t, d, "a", failWith(errBoom))
		if out := d.Dispatch(t.Context(), delivery()); out.Kind != dispatch.Dead {
			t.Fatalf("%+v", out)
		}
	})

	t.Run("that panics or returns no handler fails the event only", func(t *testing.T) {
		t.Parallel()
		for _, mw := range []dispatch.Middleware{
			func(dispatch.Handler) dispatch.Handler { return nil },
			func(dispatch.Handler) dispatch.Handler {
				return dispatch.HandlerFunc(func(context.Context, *event.Event) error { panic("in middleware") })
			},
		} {
			d := newDispatcher(t, dispatch.Config{})
			d.Use(mw)
			subscribe(t, d, "a", succeed)
			if out := d.Dispatch(t.Context(), delivery()); out.Kind != dispatch.Retry || !strings.Contains(out.Error, "panic: ") {
				t.Fatalf("%+v", out)
			}
		}
	})
}

func TestRegistrationEndsWithTheFirstEvent(t *testing.T) {
	t.Parallel()
	book := &logBook{}
	d := newDispatcher(t, dispatch.Config{Log: book.logger()})
	subscribe(t, d, "a", succeed)
	d.Dispatch(t.Context(), delivery())

	if err := d.Subscribe(eventType, "b", dispatch.HandlerFunc(succeed)); err == nil {
		t.Error("a late Subscribe was accepted")
	}
	d.Use(func(dispatch.Handler) dispatch.Handler { return dispatch.HandlerFunc(failWith(errBoom)) })
	if n := len(book.lines(t, "middleware_ignored_after_first_event")); n != 1 {
		t.Errorf("a late Use was logged %d times", n)
	}
	if out := d.Dispatch(t.Context(), delivery()); out.Kind != dispatch.Published {
		t.Errorf("a late Use took effect: %+v", out)
	}
}

func TestFirstEventsMayArriveTogether(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t, dispatch.Config{Timeout: time.Minute})
	wrapped := 0
	d.Use(func(next dispatch.Handler) dispatch.Handler { wrapped++; return next })
	subscribe(t, d, "a", succeed)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if out := d.Dispatch(t.Context(), delivery()); out.Kind != dispatch.Published {
				t.Errorf("%+v", out)
			}
		})
	}
	wg.Wait()
	if wrapped != 1 {
		t.Fatalf("middleware was built %d times", wrapped)
	}
}
