package sink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/seed-9a365b49/outbox/dispatch"
)

func newStdout(t testing.TB, w io.Writer) *Stdout {
	t.Helper()
	s, err := NewStdout(w, source)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// writerFunc records or fails writes.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestStdoutWrites(t *testing.T) {
	t.Parallel()

	t.Run("one line an event, in a single write", func(t *testing.T) {
		t.Parallel()
		var writes [][]byte
		s := newStdout(t, writerFunc(func(p []byte) (int, error) {
			writes = append(writes, bytes.Clone(p))
			return len(p), nil
		}))
		e := newEvent(1)
		e.Type = "two\nlines"
		e.Data = json.RawMessage("{\n\"a\": 1\r\n}")
		for range 2 {
			if err := s.Handle(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if len(writes) != 2 {
			t.Fatalf("%d writes for 2 events", len(writes))
		}
		for _, line := range writes {
			if bytes.IndexByte(line, '\n') != len(line)-1 || !json.Valid(line) {
				t.Errorf("not one line of JSON: %q", line)
			}
		}
	})

	t.Run("whole lines from concurrent handlers", func(t *testing.T) {
		t.Parallel()
		const handlers, events = 16, 50
		var out bytes.Buffer
		var writing atomic.Bool
		s := newStdout(t, writerFunc(func(p []byte) (int, error) {
			if !writing.CompareAndSwap(false, true) {
				t.Error("two writes at the same time")
			}
			defer writing.Store(false)
			return out.Write(p)
		}))
		var wg sync.WaitGroup
		for h := range handlers {
			wg.Go(func() {
				for i := range events {
					if err := s.Handle(context.Background(), newEvent(int64(h*events+i))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()

		seen := map[string]bool{}
		for line := range bytes.Lines(out.Bytes()) {
			var e struct{ OutboxID string }
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			seen[e.OutboxID] = true
		}
		for id := range handlers * events {
			if !seen[strconv.Itoa(id)] {
				t.Errorf("event %d is missing", id)
			}
		}
	})

	t.Run("flushed before Handle returns", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		s := newStdout(t, bufio.NewWriterSize(&out, 1<<20))
		if err := s.Handle(t.Context(), newEvent(1)); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(out.Bytes(), []byte("}\n")) {
			t.Errorf("the stream has %q", out.Bytes())
		}
	})

	t.Run("not at all without a writer or a source", func(t *testing.T) {
		t.Parallel()
		if _, err := NewStdout(nil, source); err == nil {
			t.Error("a nil writer was accepted")
		}
		if _, err := NewStdout(io.Discard, ""); err == nil {
			t.Error("an empty source was accepted")
		}
	})
}

func TestStdoutThatFails(t *testing.T) {
	t.Parallel()

	failures := map[string]struct {
		writer func(t *testing.T) io.Writer
		want   error
	}{
		"the reader of the pipe is gone": {
			func(t *testing.T) io.Writer {
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				r.Close()
				t.Cleanup(func() { w.Close() })
				return w
			}, syscall.EPIPE,
		},
		"the disk is full": {
			func(*testing.T) io.Writer {
				return writerFunc(func(p []byte) (int, error) { return len(p) / 2, syscall.ENOSPC })
			}, syscall.ENOSPC,
		},
		"a write is cut short": {
			func(*testing.T) io.Writer {
				return writerFunc(func(p []byte) (int, error) { return len(p) - 1, nil })
			}, io.ErrShortWrite,
		},
		"flushing fails": {
			func(*testing.T) io.Writer {
				return bufio.NewWriter(writerFunc(func([]byte) (int, error) { return 0, syscall.EIO }))
			}, syscall.EIO,
		},
	}
	for name, tt := range failures {
		t.Run("closes the sink and leaves events untouched when "+name, func(t *testing.T) {
			t.Parallel()
			s := newStdout(t, tt.writer(t))
			if err := s.Err(); err != nil {
				t.Fatalf("error before any write: %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			// The second event meets a sink that is closed already, or is the one that closes it.
			outcomes := make(chan dispatch.Outcome, 2)
			for id := range int64(2) {
				go func() { outcomes <- outcome(ctx, t, s, newEvent(id)) }()
			}
			receive(t, s.Closed(), "sign that the sink is closed")
			if err := s.Err(); !errors.Is(err, tt.want) {
				t.Errorf("Err() = %v, want %v", err, tt.want)
			}

			cancel() // what the program does when the sink is closed
			for range 2 {
				if got := receive(t, outcomes, "outcome"); got.Kind != dispatch.Untouched {
					t.Errorf("outcome %v (%s)", got.Kind, got.Error)
				}
			}
		})
	}

	t.Run("is not written to again", func(t *testing.T) {
		t.Parallel()
		var writes atomic.Int32
		s := newStdout(t, writerFunc(func([]byte) (int, error) {
			writes.Add(1)
			return 0, syscall.EPIPE
		}))
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 3)
		for id := range int64(3) {
			go func() { errs <- s.Handle(ctx, newEvent(id)) }()
		}
		receive(t, s.Closed(), "sign that the sink is closed")
		cancel()
		for range 3 {
			if err := receive(t, errs, "return of Handle"); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		if n := writes.Load(); n != 1 {
			t.Errorf("%d writes", n)
		}
	})
}

func TestStdoutWhoseReaderStalls(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	started := make(chan struct{}, 1)
	s := newStdout(t, writerFunc(func(p []byte) (int, error) {
		select {
		case started <- struct{}{}:
		default:
		}
		return w.Write(p)
	}))

	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	go func() { errs <- s.Handle(ctx, newEvent(1)) }()
	receive(t, started, "write of the first event")
	go func() { errs <- s.Handle(ctx, newEvent(2)) }()
	cancel()
	for range 2 {
		if err := receive(t, errs, "return of Handle after its context has ended"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}

	// The reader goes on: the line that was begun comes out whole, the next one after it.
	go func() { errs <- s.Handle(context.Background(), newEvent(3)) }()
	lines := bufio.NewReader(r)
	for _, want := range []string{"1", "3"} {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ OutboxID string }
		if err := json.Unmarshal(line, &e); err != nil || e.OutboxID != want {
			t.Errorf("line %q (%v), want event %s", line, err, want)
		}
	}
	if err := receive(t, errs, "return of Handle"); err != nil {
		t.Error(err)
	}
}

func BenchmarkStdout(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	e := newEvent(1)
	// The floor: the same line, formatted before and written without a sink.
	b.Run("floor", func(b *testing.B) {
		line := fmt.Appendf(nil, "%0500d\n", 0)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := null.Write(line); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sink", func(b *testing.B) {
		s := newStdout(b, null)
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Handle(context.Background(), e); err != nil {
				b.Fatal(err)
			}
		}
	})
}
