package poller

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// retries knows when to look for due retries, and from where. It is pure.
//
// It keeps a forward position in (next_retry_at, id), so that due rows that are in flight or blocked are not read
// again and again. The timer comes from the query itself (the next next_retry_at that is still in the
// future) and from our own settlements.
type retries struct {
	afterTime pgtype.Timestamptz
	afterID   int64
	next      time.Time // zero: no retry is known to wait
	some      bool      // an event may be in retry, due or not, and hold back its aggregate; or dead, and be redriven at any time
}

// fromStart is the state for a fresh owner: look at once, from the very start.
func (r *retries) fromStart(now time.Time) {
	*r = retries{afterTime: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, next: now, some: true}
}

// none reports whether nothing can hold back an aggregate, by a look from the start that found nothing and all that
// has been taken in since. A dead letter can: a person makes it a retry, and what is published after that has to wait.
func (r *retries) none() bool { return !r.some }

// note takes in whether something shows that an event is in retry or dead.
func (r *retries) note(some bool) { r.some = r.some || some }

// confirm has a look come now: from the beginning if that may show that no event is in retry any more, else for what
// somebody has made due since the last one and told nobody.
func (r *retries) confirm(now time.Time) {
	switch {
	case !r.some:
	case r.next.IsZero():
		r.fromStart(now)
	default:
		r.next = now
	}
}

// due reports whether it is time to look.
func (r *retries) due(now time.Time) bool { return !r.next.IsZero() && !now.Before(r.next) }

// found takes in a look, of which the rows are passed to their lanes: fewer than asked for unless full. It sets the
// timer: at once if there may be more.
func (r *retries) found(now time.Time, d dueRows, full bool) {
	r.some = len(d.rows) > 0 || d.waits || d.dead || r.afterTime.InfinityModifier != pgtype.NegativeInfinity
	if n := len(d.rows); n > 0 {
		r.afterTime, r.afterID = d.rows[n-1].at, d.rows[n-1].id
	}
	switch {
	case full:
		r.next = now
	case d.waits:
		r.next = now.Add(d.nextIn)
	default:
		r.next = time.Time{}
	}
}

// expect takes in a retry that was settled, or found elsewhere: when it is due by this process's clock, and by
// the database's (not valid: unknown).
func (r *retries) expect(when time.Time, at pgtype.Timestamptz) {
	r.some = true
	if r.next.IsZero() || when.Before(r.next) {
		r.next = when
	}
	if at.Valid && at.InfinityModifier == pgtype.Finite && r.afterTime.InfinityModifier == pgtype.Finite && !at.Time.After(r.afterTime.Time) {
		r.afterTime, r.afterID = pgtype.Timestamptz{Time: at.Time.Add(-time.Microsecond), Valid: true}, 0
	}
}
