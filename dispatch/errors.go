package dispatch

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Permanent marks err as one that no retry can cure: the subscriber is not called again for
// this event, and the event is dead once no other subscriber of it can still retry.
// backoff.Permanent of github.com/cenkalti/backoff/v4 means the same. The mark is found
// through wrapping and errors.Join, and it outweighs [RetryAfter]. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err: err}
}

// RetryAfter asks for the next attempt after d instead of the retry policy's delay, for
// instance because a server answered 429 with Retry-After. The attempt counts like any
// other. A d that is not positive asks for nothing (a point in time that has passed would use up all attempts
// within moments), and the delay is at most ten years. The longest wins where several subscribers of one event ask.
//
// RetryAfter(d, nil) is nil, as wrapping no error always is: it reports success.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err: err, after: d}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

type retryAfterError struct {
	err   error
	after time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

func isPermanent(err error) bool {
	if _, ok := errors.AsType[*permanentError](err); ok {
		return true
	}
	_, ok := errors.AsType[*backoff.PermanentError](err)
	return ok
}

// retryAfter returns the delay that err asks for, nil where it does not.
func retryAfter(err error) *time.Duration {
	if e, ok := errors.AsType[*retryAfterError](err); ok && e.after > 0 {
		return &e.after
	}
	return nil
}
