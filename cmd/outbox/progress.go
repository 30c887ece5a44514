package main

import (
	"fmt"
	"io"
	"strconv"
	"time"
)

// progressEvery is how often the line is rewritten at most.
const progressEvery = 100 * time.Millisecond

// progress is a line on a terminal that says how far the work has come, rewritten in place. A nil one shows nothing.
type progress struct {
	w     io.Writer
	began time.Time
	shown time.Time
}

func newProgress(w io.Writer, now time.Time) *progress {
	return &progress{w: w, began: now, shown: now}
}

// show rewrites the line, unless it was just written.
func (p *progress) show(published int, now time.Time) {
	if p == nil || now.Sub(p.shown) < progressEvery {
		return
	}
	p.shown = now
	p.write(published, now, "")
}

// end writes the line for the last time, and leaves it.
func (p *progress) end(published int, now time.Time) {
	if p != nil {
		p.write(published, now, "\n")
	}
}

// write returns to the start of the line first, and clears what is left of the old one in the end.
func (p *progress) write(published int, now time.Time, end string) {
	elapsed := now.Sub(p.began)
	rate := float64(published) / max(elapsed.Seconds(), 1e-3)
	fmt.Fprintf(p.w, "\r%s published in %s (%.0f a second)\x1b[K%s", events(published), elapsed.Round(progressEvery), rate, end)
}

func events(n int) string {
	if n == 1 {
		return "1 event"
	}
	return strconv.Itoa(n) + " events"
}
