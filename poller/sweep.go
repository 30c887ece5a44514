package poller

import "time"

// sweep is the schedule of the walk from zero that backs up the cursor: events whose id was drawn before their
// transaction (sequence CACHE, pooled allocators, setval backwards) escape the watermark.
//
// A walk goes up to the watermark in slices, each a range of ids and not a number of rows, since
// the range bounds the time where the index is full of dead entries. The range adapts so that a slice takes a few
// milliseconds. A walk that took under 50 ms starts again a second after it began; a longer one
// rests for 20 times what it took. Slices rest in proportion, so the sweep takes at most a twentieth of
// the time. It is pure.
type sweep struct {
	position int64 // where the walk has come to
	span     int64 // ids in the next slice
	next     time.Time
	began    time.Time
	spent    time.Duration
	lastWalk time.Time // when the last complete walk ended
}

const (
	sweepInterval  = time.Second
	sweepRest      = 20 // times what it took
	sweepFirstSpan = 10_000
	sweepMinSpan   = 500
	sweepMaxSpan   = 1 << 50
	sweepSliceGoal = 4 * time.Millisecond
)

// slice returns the id range of the next slice: after < id ≤ upTo.
func (s *sweep) slice(watermark int64, now time.Time) (after, upTo int64) {
	if s.position == 0 {
		s.began, s.spent = now, 0
	}
	if s.span == 0 {
		s.span = sweepFirstSpan
	}
	return s.position, max(s.position, min(s.position+s.span, watermark))
}

// swept takes in a slice up to upTo that took so long. It reports whether the walk is complete.
func (s *sweep) swept(upTo, watermark int64, took time.Duration, now time.Time) (complete bool) {
	s.position = upTo
	s.spent += took
	switch {
	case took > 2*sweepSliceGoal:
		s.span = max(s.span/2, sweepMinSpan)
	case took < sweepSliceGoal/2:
		s.span = min(s.span*2, sweepMaxSpan)
	}
	rest := now.Add((sweepRest - 1) * took)
	if upTo < watermark {
		s.next = rest
		return false
	}
	s.position = 0
	s.lastWalk = now
	s.next = s.began.Add(sweepInterval)
	if s.spent >= sweepInterval/sweepRest {
		s.next = now.Add((sweepRest - 1) * s.spent)
	}
	return true
}
