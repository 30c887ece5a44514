package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// DefaultRate is how many events a second are published where nothing else is asked for: as many as can be read
	// while they scroll by.
	DefaultRate = 20
	// MaxRate keeps the demo a demo.
	MaxRate = 1000
)

// Options configures [Run]. The zero value is the demo as it is meant: a private server, and no end but Ctrl-C.
type Options struct {
	// Out takes everything that is shown. Colours and the line at the bottom need a terminal. Defaults to standard output.
	Out io.Writer
	// For is how long events are published. Defaults to until the context ends.
	For time.Duration
	// Rate is how many events a second are published, by services and handlers, bursts aside, as far as the machine keeps up. Defaults to 20; at most 1,000.
	Rate float64
	// DatabaseURL is a server to use instead of a private one, as a URL or a keyword=value string: a
	// database with a random name is made there, and dropped at the end. The role needs CREATEDB.
	DatabaseURL string
	// Events stops the publishing after so many events, not counting those that handlers publish. Defaults to no limit.
	Events int
	// Retry is the retry ladder: an event is dead once it has failed one time more than there are steps. Defaults to 1 s,
	// 2 s, so that a newcomer sees every stage: the worker's own begins at a minute.
	Retry []time.Duration
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.For < 0 {
		errs = append(errs, fmt.Errorf("for: %s is negative", o.For))
	}
	if o.Rate == 0 {
		o.Rate = DefaultRate
	}
	if !(o.Rate > 0 && o.Rate <= MaxRate) { // also refuses NaN
		errs = append(errs, fmt.Errorf("rate: %g is not above 0 and at most %d events a second", o.Rate, MaxRate))
	}
	if o.Events < 0 {
		errs = append(errs, fmt.Errorf("events: %d is negative", o.Events))
	}
	if len(o.Retry) == 0 {
		o.Retry = []time.Duration{time.Second, 2 * time.Second}
	}
	return o, errors.Join(errs...)
}

// attempts is after how many failures an event is dead.
func (o Options) attempts() int { return len(o.Retry) + 1 }

// retryTime is about how long it takes an event to become a dead letter, the ladder's jitter included.
func (o Options) retryTime() time.Duration {
	var sum time.Duration
	for _, step := range o.Retry {
		sum += step
	}
	return sum + sum/10
}
