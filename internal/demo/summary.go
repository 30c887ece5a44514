package demo

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Summary is what a demo did, and whether the outbox kept its promises.
type Summary struct {
	books
	// Elapsed is how long events were published and waited for.
	Elapsed time.Duration
	// Latency is that of first attempts, from the acknowledged commit to the call of the handler, without
	// those that waited for an earlier event of their aggregate. PastDue is that of retries, from the time they were due.
	Latency, PastDue percentiles
	// Stored is what the database holds in the end.
	Stored stored
}

// stored counts the rows of events.outbox by their state.
type stored struct {
	Published, Pending, Dead int
}

// Err lists the promises that were not kept; nil if there are none. Deliveries that were repeated are no fault:
// the promise is at least once.
func (s Summary) Err() error {
	var errs []error
	fault := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(s.Ghosts > 0, "%d events were delivered though their transaction was rolled back", s.Ghosts)
	fault(s.OutOfOrder > 0, "%d events were delivered before an earlier one of their aggregate", s.OutOfOrder)
	fault(s.Unlinked > 0, "%d events do not name their cause", s.Unlinked)
	fault(s.Delivered+s.Dead != s.Published, "%d events were committed, but %d delivered and %d dead", s.Published, s.Delivered, s.Dead)
	fault(s.Stored != stored{Published: s.Delivered, Dead: s.Dead},
		"the database holds %d published, %d pending and %d dead events, not %d, 0 and %d",
		s.Stored.Published, s.Stored.Pending, s.Stored.Dead, s.Delivered, s.Dead)
	return errors.Join(errs...)
}

// show writes the summary.
func (s Summary) show(to *screen) {
	to.note("")
	to.note(to.paint.bold(fmt.Sprintf("Summary of %.1f s", s.Elapsed.Seconds())))
	to.fact("published", fmt.Sprintf("%s of %s, %d of them by handlers", plural(s.Published, "event"), plural(s.Aggregates, "aggregate"), s.ByHandlers))
	if s.RolledBack > 0 {
		to.fact("rolled back", fmt.Sprintf("%s, %s of them delivered", plural(s.RolledBack, "event"), none(s.Ghosts)))
	}
	to.fact("delivered", fmt.Sprintf("%s, %d of them after a retry", plural(s.Delivered, "event"), s.Retried))
	if s.Repeated > 0 {
		to.fact("", fmt.Sprintf("%s came again: the promise is at least once", plural(s.Repeated, "event")))
	}
	if a := s.LastDead; s.Dead > 0 {
		to.fact("dead letter", fmt.Sprintf("%d: %s of %s, after %s", s.Dead, a.eventType, a.aggregate.short(), plural(a.number, "attempt")))
	}
	if l := s.Latency; l.N > 0 {
		to.fact("latency", fmt.Sprintf("%s   p95 %s   p99 %s   max %s", to.paint.bold("p50 "+short(l.P50)), short(l.P95), short(l.P99), short(l.Max)))
		to.fact("", "from the commit to the handler, "+plural(l.N, "first attempt"))
	}
	if s.Waited > 0 {
		to.fact("", fmt.Sprintf("not counting %d that waited for a retry, to keep the order", s.Waited))
	}
	if s.Early > 0 {
		to.fact("", fmt.Sprintf("%d began before the publisher knew of its commit: 0.00 ms", s.Early))
	}
	if l := s.PastDue; l.N > 0 {
		to.fact("retries", fmt.Sprintf("%d, past due by p50 %s   max %s", l.N, short(l.P50), short(l.Max)))
	}
	if err := s.Err(); err != nil {
		for _, fault := range strings.Split(err.Error(), "\n") {
			to.fact("fault", to.paint.red(fault))
		}
		return
	}
	name := "checked"
	for _, promise := range s.kept() {
		to.fact(name, to.paint.green(promise))
		name = ""
	}
}

// kept says what was checked and found right.
func (s Summary) kept() []string {
	drained := "nothing is pending"
	if s.Dead > 0 {
		drained = "nothing is pending but the dead letter"
	}
	kept := []string{drained, fmt.Sprintf("order kept in all %s", plural(s.Aggregates, "aggregate"))}
	if s.ByHandlers > 0 {
		kept = append(kept, fmt.Sprintf("%s by handlers, each naming its cause", plural(s.ByHandlers, "event")))
	}
	return kept
}

func none(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		noun = stem + "ie"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
