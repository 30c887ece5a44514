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
	some      bool      // an event may be in retry, due or not: it holds back its aggregate
}

// fromStart is the state for a fresh owner: look at once, from the very start.
func (r *retries) fromStart(now time.Time) {
	*r = retries{afterTime: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, next: now, some: true}
}

// none reports whether nothing holds back an aggregate, by a look from the start that found nothing and all that
// has been taken in since. Another writer's retry, not seen yet, holds back nothing yet.
func (r *retries) none() bool { return !r.some }

// confirm has the next look start from the beginning, if that may show that no event is in retry any more.
func (r *retries) confirm(now time.Time) {
	if r.some && r.next.IsZero() {
		r.fromStart(now)
	}
}

// due reports whether it is time to look.
func (r *retries) due(now time.Time) bool { return !r.next.IsZero() && !now.Before(r.next) }

// found takes in a look: rows that are passed to their lanes, fewer than asked for unless full, and how long until
// the next one, if one waits. It sets the timer: at once if there may be more.
func (r *retries) found(now time.Time, rows []dueRow, full bool, nextIn time.Duration, waits bool) {
	r.some = len(rows) > 0 || waits || r.afterTime.InfinityModifier != pgtype.NegativeInfinity
	if n := len(rows); n > 0 {
		r.afterTime, r.afterID = rows[n-1].at, rows[n-1].id
	}
	switch {
	case full:
		r.next = now
	case waits:
		r.next = now.Add(nextIn)
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
