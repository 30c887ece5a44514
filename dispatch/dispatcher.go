package dispatch

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// DefaultMaxAttempts is the specification's: an event with retry_count ≥ 10 is a dead letter.
	DefaultMaxAttempts = 10
	// DefaultTimeout is how long a handler may take.
	DefaultTimeout = 30 * time.Second
)

// Config configures a [Dispatcher]. The zero value takes every default.
type Config struct {
	// Retry decides when a failed event is tried again. Defaults to [DefaultRetry].
	Retry RetryPolicy
	// MaxAttempts is the number of attempts after which a failing event is dead: with 10,
	// the tenth failure is. Attempts count for the event, not for each subscriber.
	// Defaults to [DefaultMaxAttempts].
	MaxAttempts int
	// Timeout is how long one handler call may take before its context is cancelled.
	// [WithTimeout] overrides it for one subscriber. Defaults to [DefaultTimeout].
	Timeout time.Duration
	// Called is told of each handler call that has ended, on the call's goroutine. nil: nobody is.
	Called func(Call)
	// Log takes a line for each failed attempt, dead event, panic and overdue handler.
	// Payloads are never logged. The zero value logs nothing.
	Log zerolog.Logger
}

// Dispatcher delivers events to subscribers. Register everything with [Dispatcher.Subscribe]
// and [Dispatcher.Use] first; from the first [Dispatcher.Deliver] on the registration is
// fixed. Deliver is safe for concurrent use.
type Dispatcher struct {
	registry
	retry       RetryPolicy
	maxAttempts int
	timeout     time.Duration
	called      func(Call) // [Config.Called]
	log         zerolog.Logger
	calls       sync.Pool // of *call
}

// New returns a dispatcher without subscribers, or everything that is wrong with cfg.
func New(cfg Config) (*Dispatcher, error) {
	var errs []error
	if cfg.MaxAttempts < 0 {
		errs = append(errs, fmt.Errorf("negative MaxAttempts: %d", cfg.MaxAttempts))
	}
	if cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("negative Timeout: %s", cfg.Timeout))
	}
	if p, ok := cfg.Retry.(backOff); ok && p.newBackOff == nil {
		errs = append(errs, errors.New("no function given to BackOff in Retry"))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("dispatch config: %w", errors.Join(errs...))
	}
	d := &Dispatcher{retry: cfg.Retry, maxAttempts: cfg.MaxAttempts, timeout: cfg.Timeout, called: cfg.Called, log: cfg.Log}
	if d.retry == nil {
		d.retry = DefaultRetry()
	}
	if d.maxAttempts == 0 {
		d.maxAttempts = DefaultMaxAttempts
	}
	if d.timeout == 0 {
		d.timeout = DefaultTimeout
	}
	return d, nil
}
