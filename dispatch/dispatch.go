package dispatch

import (
	"context"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/event"
)

// Deliver makes one attempt at an event: it calls every subscriber that has not succeeded
// yet, all at the same time, waits for all of them, and calls done with what is to be settled. A
// failed attempt is logged here, once. Whatever a handler does short of running for ever,
// done is called, once, on the goroutine of Deliver: a panic and a runtime.Goexit are failures
// like an error.
//
// One of the handlers runs on the goroutine of Deliver, which spares an event with one subscriber
// a goroutine. If it ends that goroutine (runtime.Goexit, as t.FailNow does in a test's handler), Deliver does not
// return: done is called while the goroutine ends.
//
// A handler that runs on past its timeout is waited for, and the log says so once. Giving it
// up would let the retry, or the next event of the aggregate, start while it still works, and
// so break the rule that an aggregate has one event at a time; the price is that it keeps its
// slot. What it returns in the end counts: nil is a success, an error is a timeout.
//
// Once ctx is done an error or a panic of a handler is put down to the shutdown, and the event
// is Untouched as soon as one subscriber was cut off, whatever became of the others: then
// those that succeeded are called again at the redelivery. A subscriber whose own timeout came
// before the shutdown has failed, and an event whose subscribers all succeed is Published.
// With ctx done from the start nothing is called.
func (d *Dispatcher) Deliver(ctx context.Context, dl Delivery, done func(Outcome)) {
	if ctx.Err() != nil {
		done(Outcome{Kind: Untouched})
		return
	}
	subs := d.subscribers(dl.Event.Type)
	remaining, skipped := dl.remaining(subs, d.maxAttempts)
	if len(subs) == 0 {
		if d.called != nil {
			d.called(Call{Event: dl.Event, Result: ResultNoHandler})
		}
		d.end(dl, []result{noSubscriber(dl.Event.Type)}, nil, done)
		return
	}
	ctx = event.NewContext(ctx, dl.Event)
	var few [4]*call // spares an allocation for each event
	calls := few[:0]
	for _, sub := range remaining {
		calls = append(calls, d.newCall(ctx, sub, dl))
	}
	defer func() { // also if the handler ends this goroutine
		var few [4]result
		results := few[:0]
		for _, c := range calls {
			results = append(results, c.wait())
		}
		d.end(dl, results, skipped, done)
	}()
	for i, c := range calls {
		if i < len(calls)-1 {
			go c.run()
		} else {
			c.run()
		}
	}
}

// end concludes the attempt.
func (d *Dispatcher) end(dl Delivery, results []result, skipped []*subscription, done func(Outcome)) {
	out := d.conclude(dl, results, skipped)
	d.report(dl, results, out)
	done(out)
}

// Dispatch is [Dispatcher.Deliver] for a caller that waits for the outcome, whatever a handler does to its goroutine.
func (d *Dispatcher) Dispatch(ctx context.Context, dl Delivery) Outcome {
	out := make(chan Outcome, 1)
	go d.Deliver(ctx, dl, func(o Outcome) { out <- o })
	return <-out
}

// noSubscriber is the failure of an event that nobody subscribes to. It is retried like any
// other, since during a rolling deploy the next attempt may be made by a worker that knows the type.
func noSubscriber(eventType string) result {
	return result{verdict: failed, text: fmt.Sprintf("no subscriber for event type %.200q in this worker: "+
		"EVERY replica of ONE worker program must register the SAME subscribers, and no other program may work on this outbox",
		eventType)}
}

// report logs an attempt that did not publish the event: one line, with the fate of the event.
func (d *Dispatcher) report(dl Delivery, results []result, out Outcome) {
	var line *zerolog.Event
	var name string
	switch out.Kind {
	case Retry:
		line, name = d.log.Warn().Stringer("retry_in", out.Delay), "event_failed"
	case Dead:
		line, name = d.log.Error(), "event_dead"
	case Untouched:
		line, name = d.log.Info(), "event_interrupted"
	default:
		return
	}
	var failing []string
	for _, r := range results {
		if r.verdict != delivered && r.subscriber != "" {
			failing = append(failing, r.subscriber)
		}
	}
	dl.describe(line).Strs("subscribers", failing).Str("error", out.Error).Msg(name)
}
