package sink

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/sink/cloudevent"
)

// Stdout writes each event as one CloudEvents JSON object a line to a stream, as a rule
// the standard output. It is safe for concurrent use.
//
// # A stream that fails
//
// The first write that fails closes the sink for good: how much of the line got out is
// unknown, and a reader that has gone away does not come back. [Stdout.Closed] tells the
// program, which should cancel its handlers at once and end. Until then every Handle waits for the end of
// its context. An error returned at once would cost each event an attempt,
// although nothing is wrong with the events; one that the shutdown cut off stays untouched.
//
// A write to a broken pipe on file descriptor 1 kills a Go program with SIGPIPE before any
// error is seen; a program that uses this sink on os.Stdout calls
// signal.Ignore(syscall.SIGPIPE) first.
type Stdout struct {
	w      io.Writer
	source string
	turn   chan struct{} // holds one token while a line is being written
	closed chan struct{}
	err    error // set before closed is closed
}

// NewStdout returns a sink that writes to w, one Write call per event, followed by a Flush if w
// has that method. Source is the CloudEvents source, see [cloudevent.CheckSource].
func NewStdout(w io.Writer, source string) (*Stdout, error) {
	if w == nil {
		return nil, errors.New("stdout sink: no writer given")
	}
	if err := cloudevent.CheckSource(source); err != nil {
		return nil, fmt.Errorf("stdout sink: %w", err)
	}
	return &Stdout{w: w, source: source, turn: make(chan struct{}, 1), closed: make(chan struct{})}, nil
}

// Closed is closed when a write has failed and no event can be written any more.
func (s *Stdout) Closed() <-chan struct{} { return s.closed }

// Err returns the error of the failed write, and nil as long as [Stdout.Closed] is open.
func (s *Stdout) Err() error {
	select {
	case <-s.closed:
		return s.err
	default:
		return nil
	}
}

// String returns "stdout".
func (s *Stdout) String() string { return "stdout" }

// Handle writes e and returns nil once the line has been handed to the stream. It returns
// the context's error, wrapped, if that ends first, for instance because the reader of a pipe has
// stopped reading. A line already begun is finished all the same when the reader goes on.
func (s *Stdout) Handle(ctx context.Context, e *event.Event) error {
	line := append(cloudevent.Append(nil, s.source, e), '\n')

	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait to write to stdout: %w", ctx.Err())
	}
	// A Write to a full pipe cannot be interrupted, so it must not be what Handle waits in.
	written := make(chan error, 1)
	go func() {
		err := s.write(line)
		<-s.turn
		written <- err
	}()

	select {
	case err := <-written:
		if err == nil {
			return nil
		}
		<-ctx.Done()
		return fmt.Errorf("%w (%w)", err, ctx.Err())
	case <-ctx.Done():
		return fmt.Errorf("write to stdout: %w", ctx.Err())
	}
}

// write is called by the holder of the turn only.
func (s *Stdout) write(line []byte) error {
	if s.err != nil {
		return s.err
	}
	n, err := s.w.Write(line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if f, ok := s.w.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	if err != nil {
		s.err = fmt.Errorf("write to stdout: %w", err)
		close(s.closed)
	}
	return s.err
}
