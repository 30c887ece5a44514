package poller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// settler writes outcomes. It batches by itself: while one write is under way outcomes pile up, and the next takes
// them all, in id order, without waiting for more. If the database is away it keeps them and tries again, together
// with what has come meanwhile.
//
// One write at a time: two at once were tried, each with its own aggregates, and in turn with commits in order. PostgreSQL
// then spends up to a quarter more on each mark, and a drain is no faster.
type settler struct {
	write   func(context.Context, []outcome) ([]settlement, error)
	settled func([]settlement)
	log     zerolog.Logger

	mu      sync.Mutex
	pending []outcome
	spare   []outcome // the last batch's, to be used again
	writing int       // outcomes in the write that is under way
	failing string    // why the last write failed; empty: it did not
	wake    chan struct{}
}

// maxSpare is how many outcomes a batch may hold that is kept to be used again.
const maxSpare = 4096

// offenderDelay is when an event is tried again whose outcome the database refused.
const offenderDelay = time.Minute

func newSettler(write func(context.Context, []outcome) ([]settlement, error), settled func([]settlement), log zerolog.Logger) *settler {
	return &settler{write: write, settled: settled, log: log, wake: make(chan struct{}, 1)}
}

// add queues an outcome.
func (s *settler) add(o outcome) {
	s.mu.Lock()
	s.pending = append(s.pending, o)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// left returns how many outcomes are not written yet.
func (s *settler) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending) + s.writing
}

// run writes until ctx ends; drain, once closed, lets it return as soon as nothing is left.
func (s *settler) run(ctx context.Context, drain <-chan struct{}) {
	for {
		select {
		case <-s.wake:
		case <-drain:
			if s.left() == 0 {
				return
			}
		case <-ctx.Done():
			return
		}
		if batch := s.take(); len(batch) > 0 {
			s.settle(ctx, batch)
		}
	}
}

// take returns everything that waits, in id order.
func (s *settler) take() []outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.pending
	s.pending, s.spare, s.writing = s.spare, nil, len(batch)
	slices.SortFunc(batch, func(a, b outcome) int { return cmp.Compare(a.row.id, b.row.id) })
	return batch
}

// keep ends the write of a batch, of which rest has to be written later.
func (s *settler) keep(batch, rest []outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending, s.writing = append(s.pending, rest...), 0
	if cap(batch) <= maxSpare {
		clear(batch)
		s.spare = batch[:0]
	}
}

// settle writes a batch, however long the database is away, and what has come by then. What it could not write
// before ctx ended stays pending.
func (s *settler) settle(ctx context.Context, batch []outcome) {
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(3*time.Second), backoff.WithMaxElapsedTime(0))
	for {
		done, rest, err := s.attempt(ctx, batch)
		s.keep(batch, rest)
		if len(done) > 0 {
			s.settled(done)
		}
		s.note(err, len(rest))
		if len(rest) == 0 {
			return
		}
		var more <-chan struct{}
		if isDataFault(err) {
			more = s.wake // the database is there, and takes other outcomes
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
		case <-time.After(pause.NextBackOff()):
		}
		batch = s.take()
	}
}

// attempt writes a batch. Where the database refuses it for what is in it, the batch is halved until
// the offender is alone; that becomes a retry with the database's error, unless it is the hook that the database refuses: then the
// offender waits. It returns what was settled, and
// what has to wait with the error that says why.
func (s *settler) attempt(ctx context.Context, batch []outcome) (done []settlement, rest []outcome, err error) {
	done, err = s.write(ctx, batch)
	switch {
	case err == nil:
		return done, nil, nil
	case !isDataFault(err), len(batch) == 1 && isHookError(err):
		return nil, batch, err
	case len(batch) == 1:
		return s.refused(ctx, batch[0], err)
	}
	half := len(batch) / 2
	done, rest, err = s.attempt(ctx, batch[:half])
	if err != nil && !isDataFault(err) { // the database went away: the other half need not try
		return done, append(rest, batch[half:]...), err
	}
	done2, rest2, err2 := s.attempt(ctx, batch[half:])
	if err == nil || (err2 != nil && !isDataFault(err2)) {
		err = err2 // that the database is away counts more than that it refuses something
	}
	return append(done, done2...), append(rest, rest2...), err
}

// refused turns an outcome that the database does not take into a retry with the database's error.
func (s *settler) refused(ctx context.Context, o outcome, cause error) ([]settlement, []outcome, error) {
	retry := outcome{row: o.row, result: &dispatch.Outcome{
		Kind:  dispatch.Retry,
		Error: dispatch.CleanError("outcome " + o.result.Kind.String() + " could not be written: " + cause.Error()),
		Delay: offenderDelay,
	}}
	done, err := s.write(ctx, []outcome{retry})
	if err != nil {
		return nil, []outcome{o}, fmt.Errorf("event %d: %w", o.row.id, err)
	}
	s.log.Error().Int64("event_id", o.row.id).Str("event_type", o.row.eventType).Stringer("outcome", o.result.Kind).
		Err(cause).Msg("settle_refused")
	return done, nil, nil
}

// note logs when settling starts to fail and when it works again: once per change.
func (s *settler) note(err error, waiting int) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	s.mu.Lock()
	changed := (s.failing == "") != (now == "")
	s.failing = now
	s.mu.Unlock()
	switch {
	case !changed:
	case err != nil:
		s.log.Warn().Err(err).Int("waiting", waiting).Msg("settle_failing")
	default:
		s.log.Info().Msg("settle_recovered")
	}
}

// failure is why the last write failed; empty: it did not.
func (s *settler) failure() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failing
}
