package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
)

const (
	// liveEvery is how often the bottom line of a terminal is renewed: often enough to look alive.
	liveEvery = 250 * time.Millisecond
	// plainEvery is how often the same is a line of its own where there is no terminal.
	plainEvery = time.Second
	// attemptsPerSecond is how many uneventful deliveries are shown each second. More cannot be read, and writing them
	// takes time from what is being measured.
	attemptsPerSecond = 100
)

// screen is where the demo shows itself. Whatever happens while events are on their way is written by a goroutine of its
// own, so that a slow terminal delays no handler.
type screen struct {
	out   io.Writer
	live  bool // out is a terminal that can rewrite its bottom line
	paint paint
	lost  func() // called when out takes nothing more

	mu      sync.Mutex
	err     error // of the first write that failed
	queue   []string
	budget  int // deliveries that may still be shown this second
	skipped int
	more    chan struct{}
}

func newScreen(out io.Writer, getenv func(string) string, lost func()) *screen {
	file, ok := out.(*os.File)
	live, colours := abilities(ok && isatty.IsTerminal(file.Fd()), getenv)
	return &screen{
		out: out, live: live, paint: colours, lost: lost,
		budget: attemptsPerSecond, more: make(chan struct{}, 1),
	}
}

// abilities says whether a bottom line can be rewritten, and whether colours are welcome (https://no-color.org).
func abilities(terminal bool, getenv func(string) string) (live bool, colours paint) {
	live = terminal && getenv("TERM") != "dumb"
	return live, paint(live && getenv("NO_COLOR") == "")
}

// note writes a line at once, for the time before and after the stream.
func (s *screen) note(text string) {
	s.write([]string{text}, "")
}

// fact writes one of a list of facts.
func (s *screen) fact(name, text string) {
	s.note("  " + s.paint.dim(fmt.Sprintf("%-11s", name)) + " " + text)
}

// attempt shows an attempt. It does not block.
func (s *screen) attempt(a attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.outcome == delivered && a.number == 1 && !a.waited {
		if s.budget == 0 {
			s.skipped++
			return
		}
		s.budget--
	}
	s.push(a.lines(s.paint)...)
}

// aside shows a remark within the stream. It does not block.
func (s *screen) aside(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.push(text)
}

func (s *screen) push(lines ...string) {
	s.queue = append(s.queue, lines...)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// stream shows what attempt and aside are given, and status below it, until the returned function is called.
func (s *screen) stream(status func() string) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		s.show(stop, status)
	}()
	return func() {
		close(stop)
		<-done
	}
}

func (s *screen) show(stop <-chan struct{}, status func() string) {
	every := plainEvery
	if s.live {
		every = liveEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	var bottom string
	for {
		select {
		case <-stop:
			s.refill()
			s.write(s.take(), "")
			return
		case <-second.C:
			s.refill()
		case <-s.more:
			s.write(s.take(), bottom)
		case <-tick.C:
			if s.live {
				bottom = status()
				s.write(s.take(), bottom)
			} else {
				s.write(append(s.take(), "-- "+status()), "")
			}
		}
	}
}

// refill begins a new second, and says how many deliveries the last one did not show.
func (s *screen) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.skipped > 0 {
		s.push(s.paint.dim(fmt.Sprintf("... and %d more deliveries", s.skipped)))
	}
	s.budget, s.skipped = attemptsPerSecond, 0
}

func (s *screen) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.queue
	s.queue = nil
	return lines
}

// write writes lines, and bottom below them without an end of line, in one piece so that it does not flicker.
func (s *screen) write(lines []string, bottom string) {
	var text strings.Builder
	if s.live {
		text.WriteString("\r\x1b[K")
	}
	for _, line := range lines {
		text.WriteString(line + "\n")
	}
	text.WriteString(bottom)
	if _, err := io.WriteString(s.out, text.String()); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = fmt.Errorf("write the output: %w", err)
			s.lost()
		}
	}
}

// failure returns the error of the first write that failed.
func (s *screen) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
