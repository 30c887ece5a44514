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
}

// fromStart is the state for a fresh owner: look at once, from the very start.
func (r *retries) fromStart(now time.Time) {
	*r = retries{afterTime: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, next: now}
}

// due reports whether it is time to look.
func (r *retries) due(now time.Time) bool { return !r.next.IsZero() && !now.Before(r.next) }

// seen moves the position over a row that has been passed to its lane.
func (r *retries) seen(at pgtype.Timestamptz, id int64) { r.afterTime, r.afterID = at, id }

// looked sets the timer after a look: at once if the page was full, else by what the query said.
func (r *retries) looked(now time.Time, full bool, nextIn time.Duration, waits bool) {
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
	if r.next.IsZero() || when.Before(r.next) {
		r.next = when
	}
	if at.Valid && at.InfinityModifier == pgtype.Finite && r.afterTime.InfinityModifier == pgtype.Finite && !at.Time.After(r.afterTime.Time) {
		r.afterTime, r.afterID = pgtype.Timestamptz{Time: at.Time.Add(-time.Microsecond), Valid: true}, 0
	}
}
