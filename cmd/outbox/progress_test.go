package main

import (
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	t.Parallel()

	t.Run("is rewritten in place, ten times a second at most", func(t *testing.T) {
		t.Parallel()
		var w strings.Builder
		now := time.Unix(0, 0)
		p := newProgress(&w, now)
		for i := range 1000 { // ten seconds
			now = now.Add(10 * time.Millisecond)
			p.show(i, now)
		}
		if n := strings.Count(w.String(), "\r"); n != 100 {
			t.Errorf("written %d times in ten seconds", n)
		}
		if strings.Contains(w.String(), "\n") {
			t.Error("goes to the next line")
		}
	})
	t.Run("ends with the whole count, on a line that stays", func(t *testing.T) {
		t.Parallel()
		var w strings.Builder
		p := newProgress(&w, time.Unix(0, 0))
		p.end(3000, time.Unix(2, 0))
		if w.String() != "\r3000 events published in 2s (1500 a second)\x1b[K\n" {
			t.Errorf("%q", w.String())
		}
	})
	t.Run("one event is not several", func(t *testing.T) {
		t.Parallel()
		var w strings.Builder
		newProgress(&w, time.Unix(0, 0)).end(1, time.Unix(1, 0))
		if w.String() != "\r1 event published in 1s (1 a second)\x1b[K\n" {
			t.Errorf("%q", w.String())
		}
	})
	t.Run("without a terminal there is none", func(t *testing.T) {
		t.Parallel()
		var p *progress
		p.show(1, time.Unix(9, 0))
		p.end(1, time.Unix(9, 0))
	})
}
