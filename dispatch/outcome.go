package dispatch

import (
	"slices"
	"time"

	"github.com/seed-9a365b49/outbox/event"
)

// Delivery is one event, with what earlier attempts achieved.
type Delivery struct {
	// Event must not be nil. Its Attempt is for the handler to see; the number of this
	// attempt is RetryCount + 1.
	Event *event.Event
	// RetryCount is the number of failed attempts so far (events.outbox.retry_count).
	RetryCount int
	// Delivered names the subscribers that earlier attempts delivered to.
	Delivered []string
	// Dead names the subscribers that earlier attempts found permanently failed.
	Dead []string
}

func (dl Delivery) attempt() int { return dl.RetryCount + 1 }

// Kind is what becomes of an event. The zero value is none of them.
type Kind int

const (
	// Published: every subscriber has been delivered to.
	Published Kind = iota + 1
	// Retry: the attempt failed; another is due after Outcome.Delay.
	Retry
	// Dead: the attempt failed, and none of the subscribers that remain can still retry.
	Dead
	// Untouched: shutdown cut the attempt off; it does not count, and the event is redelivered.
	Untouched
)

func (k Kind) String() string {
	switch k {
	case Published:
		return "published"
	case Retry:
		return "retry"
	case Dead:
		return "dead"
	case Untouched:
		return "untouched"
	default:
		return "invalid"
	}
}

// Outcome is the end of one attempt: what is to be settled.
type Outcome struct {
	Kind Kind
	// Error is for events.outbox.last_error: "subscriber: error", joined by "; ", storable
	// as it is (see [CleanError]). Empty for Published. For Untouched it is not to be stored.
	Error string
	// Delay is the time until the next attempt, between 0 and ten years; set for Retry.
	Delay time.Duration
	// Delivered and Dead name the subscribers that succeeded and that failed permanently
	// in this attempt; set for Retry and Dead. A subscriber of an earlier attempt's Dead
	// can be in Delivered now, when the event has been redriven.
	Delivered, Dead []string
}

// remaining splits the subscribers that an event still waits for into those to call now and
// those that stay failed.
//
// A permanently failed subscriber stays failed, unless the event was redriven by a person:
// then it gets another chance. An event was redriven if its attempts are used up, or if only
// failed subscribers are left: either made it dead before.
func (dl Delivery) remaining(subs []*subscription, maxAttempts int) (call, skip []*subscription) {
	if len(dl.Delivered) == 0 && len(dl.Dead) == 0 {
		return subs, nil
	}
	var left []*subscription
	for _, s := range subs {
		if slices.Contains(dl.Delivered, s.name) {
			continue
		}
		left = append(left, s)
		if slices.Contains(dl.Dead, s.name) {
			skip = append(skip, s)
		} else {
			call = append(call, s)
		}
	}
	if dl.RetryCount >= maxAttempts || len(call) == 0 {
		return left, nil
	}
	return call, skip
}

// conclude combines the results of one attempt. skipped are the subscribers that an earlier
// attempt found permanently failed.
func (d *Dispatcher) conclude(dl Delivery, results []result, skipped []*subscription) Outcome {
	var ok, retryable, cut int
	var asked *time.Duration
	for i := range results {
		switch r := &results[i]; r.verdict {
		case delivered:
			ok++
		case failed:
			retryable++
			if r.after != nil && (asked == nil || *r.after > *asked) {
				asked = r.after
			}
		case interrupted:
			cut++
		}
	}
	if ok == len(results) && len(skipped) == 0 {
		return Outcome{Kind: Published}
	}
	out := Outcome{Error: describeFailures(results, skipped)}
	if cut > 0 {
		out.Kind = Untouched
		return out
	}
	out.Delivered, out.Dead = names(results, delivered), names(results, permanent)
	if retryable > 0 {
		if delay, again := d.nextDelay(dl.attempt(), asked); again {
			out.Kind, out.Delay = Retry, delay
			return out
		}
	}
	out.Kind = Dead
	return out
}

func names(results []result, v verdict) []string {
	var list []string
	for _, r := range results {
		if r.verdict == v {
			list = append(list, r.subscriber)
		}
	}
	return list
}

func describeFailures(results []result, skipped []*subscription) string {
	var texts []string
	for _, r := range results {
		if r.verdict != delivered {
			text := r.text
			if r.subscriber != "" {
				text = r.subscriber + ": " + text
			}
			texts = append(texts, text)
		}
	}
	for _, s := range skipped {
		texts = append(texts, s.name+": failed permanently in an earlier attempt")
	}
	return joinErrors(texts)
}
