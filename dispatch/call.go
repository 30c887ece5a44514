package dispatch

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/event"
)

// overdueGrace is how long after its timeout a handler may take to notice that its context
// is cancelled, before the log says that it does not.
const overdueGrace = time.Second

// verdict is what one handler call means for its subscriber.
type verdict int

const (
	delivered   verdict = iota + 1 // nil was returned
	failed                         // may be tried again
	permanent                      // must not be tried again
	interrupted                    // shutdown cut it off: as if it had not been called
)

// result is the end of one handler call.
type result struct {
	subscriber string
	verdict    verdict
	text       string         // of the error
	after      *time.Duration // the delay that the error asks for, nil where it does not
}

// call is one handler call. Its result is there also where the handler ends its goroutine
// (runtime.Goexit), which nothing can stop.
//
// Calls are pooled, for the sake of their timer, channel and function value.
type call struct {
	d        *Dispatcher
	ctx      context.Context // here and not a parameter, since run must be free of parameters
	sub      *subscription
	delivery Delivery

	run     func()        // (*call).handle, bound once: a go statement with arguments allocates
	done    chan struct{} // takes one value when result is set
	overdue *time.Timer   // runs while the handler does
	warned  bool          // overdue has fired and may still be reading this call
	result  result
}

// newCall prepares a handler call: run it, and then wait.
func (d *Dispatcher) newCall(ctx context.Context, sub *subscription, dl Delivery) *call {
	c, _ := d.calls.Get().(*call)
	if c == nil {
		c = &call{d: d, done: make(chan struct{}, 1)}
		c.run = c.handle
	}
	c.ctx, c.sub, c.delivery = ctx, sub, dl
	return c
}

// wait returns the result, however long the handler runs. The call is not to be used afterwards.
func (c *call) wait() result {
	<-c.done
	res := c.result
	if !c.warned {
		c.ctx, c.sub, c.delivery, c.result = nil, nil, Delivery{}, result{}
		c.d.calls.Put(c)
	}
	return res
}

func (c *call) handle() {
	ctx, cancel := context.WithTimeoutCause(c.ctx, c.sub.timeout, c.sub.timedOut)
	c.watch()
	returned := false
	var began time.Time
	if c.d.called != nil {
		began = time.Now()
	}
	defer func() {
		if !returned {
			c.result = c.crashed(ctx, recover())
		}
		if c.d.called != nil {
			c.d.called(Call{c.delivery.Event, c.sub.name, c.result.verdict.result(), time.Since(began)})
		}
		cancel()
		c.warned = !c.overdue.Stop()
		c.done <- struct{}{}
	}()
	err := c.sub.handler.Handle(ctx, c.delivery.Event)
	c.result = c.judge(ctx, err)
	returned = true
}

// watch starts the timer that tells of a handler that ignores its timeout.
func (c *call) watch() {
	after := c.sub.timeout + overdueGrace
	if c.overdue == nil {
		c.overdue = time.AfterFunc(after, c.warn)
		return
	}
	c.overdue.Reset(after)
}

func (c *call) warn() {
	c.delivery.describe(c.d.log.Warn()).Str("subscriber", c.sub.name).Stringer("timeout", c.sub.timeout).
		Msg("handler_exceeds_its_timeout")
}

// judge tells what the handler's error means. It runs where panics are recovered, since the
// methods of an error are code of the handler's.
func (c *call) judge(ctx context.Context, err error) result {
	res := result{subscriber: c.sub.name}
	switch {
	case err == nil:
		res.verdict = delivered // also after the timeout: what was to be done is done
		return res
	case c.sub.cutOff(ctx):
		res.verdict = interrupted
	case isPermanent(err):
		res.verdict = permanent
	default:
		res.verdict = failed
		res.after = retryAfter(err)
	}
	res.text = fmt.Sprint(err)
	if context.Cause(ctx) == c.sub.timedOut {
		res.text = c.sub.timedOut.Error() + ": " + res.text
	}
	return res
}

// crashed is the result of a handler that did not return: it panicked with value, or ended
// its goroutine where value is nil.
func (c *call) crashed(ctx context.Context, value any) result {
	res := result{subscriber: c.sub.name, verdict: failed, text: "handler ended its goroutine (runtime.Goexit)"}
	if value != nil {
		res.text = fmt.Sprintf("panic: %v", value)
		c.delivery.describe(c.d.log.Error()).Str("subscriber", c.sub.name).
			Str("error", CleanError(res.text)).Bytes("stack", debug.Stack()).Msg("handler_panicked")
	}
	if c.sub.cutOff(ctx) {
		res.verdict = interrupted
	}
	return res
}

// cutOff tells whether the handler's context ended for another reason than its own timeout:
// the shutdown. An error that follows is put down to it, since whether it is the
// cancellation's cannot be told in general (many libraries make their own error of it).
func (s *subscription) cutOff(ctx context.Context) bool {
	return ctx.Err() != nil && context.Cause(ctx) != s.timedOut
}

// describe adds the facts that name the event to a log line.
func (dl Delivery) describe(line *zerolog.Event) *zerolog.Event {
	e := dl.Event
	return line.Int64("event_id", e.ID).Stringer("public_id", e.PublicID).Str("event_type", e.Type).
		Str("aggregate", aggregate(e)).Int("attempt", dl.attempt())
}

func aggregate(e *event.Event) string { return e.AggregateType + "/" + e.AggregateID.String() }
