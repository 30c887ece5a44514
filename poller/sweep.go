package poller

import (
	"math"
	"time"
)

// sweep is the schedule of the walk from zero that backs up the cursor: events whose id was drawn before their
// transaction (sequence CACHE, pooled allocators, setval backwards) escape the watermark.
//
// A walk goes up to the watermark in slices, each a range of ids, since that bounds the time where the index is full of dead
// entries. The range adapts so that a slice takes a few milliseconds. Where it has grown over millions of published events and
// meets as many dead letters, a number of rows bounds it too. After a slice the sweep rests for 19 times what it took, and a walk begins a second after
// the last began at the earliest: a walk that takes under 50 ms is done every second, a longer one every 20 times what it
// takes. It is pure.
type sweep struct {
	position int64 // where the walk has come to
	span     int64 // ids in the next slice
	next     time.Time
	began    time.Time // the walk
}

const (
	sweepInterval  = time.Second
	sweepRest      = 20 // a slice takes one part in so many of the time
	sweepFirstSpan = 10_000
	sweepMinSpan   = 500
	sweepSliceGoal = 4 * time.Millisecond
	sweepMostRows  = 10_000 // unpublished ones in a slice: some 3 ms
)

// slice returns the id range of the next slice: after < id ≤ upTo.
func (s *sweep) slice(watermark int64, now time.Time) (after, upTo int64) {
	if s.position == 0 {
		s.began = now
	}
	if s.span == 0 {
		s.span = sweepFirstSpan
	}
	switch {
	case watermark <= s.position:
		return s.position, s.position
	case uint64(watermark)-uint64(s.position) > uint64(s.span): // the position can be below 0
		return s.position, s.position + s.span
	}
	return s.position, watermark
}

// swept takes in a slice that went up to upTo, which may be less than it should have, and took so long. It reports whether the walk is complete.
func (s *sweep) swept(upTo, watermark int64, took time.Duration, now time.Time) (complete bool) {
	s.adapt(upTo-s.position, took)
	s.next = now.Add((sweepRest - 1) * took)
	if upTo < watermark {
		s.position = upTo
		return false
	}
	s.position = 0
	if earliest := s.began.Add(sweepInterval); s.next.Before(earliest) {
		s.next = earliest
	}
	return true
}

// adapt chooses the span by how long so many ids took. Only a slice that was as long as the span says that a longer
// one would do; a slice that took too long shrinks it at once, whatever it had grown to while nothing was unpublished.
func (s *sweep) adapt(ids int64, took time.Duration) {
	switch {
	case took > 2*sweepSliceGoal:
		s.span = max(ids/int64(took/sweepSliceGoal), sweepMinSpan)
	case took < sweepSliceGoal/2 && ids == s.span:
		s.span = min(s.span, math.MaxInt64/2) * 2
	}
}
