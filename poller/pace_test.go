package poller

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPace(t *testing.T) {
	t.Parallel()
	l := defaultPace
	start := time.Unix(1_000_000, 0)
	// announce tells p of announcements at a steady rate, one at a time, and returns the time after them.
	announce := func(p *pace, now time.Time, n int, apart time.Duration) time.Time {
		for range n {
			p.announced(now, 1)
			now = now.Add(apart)
		}
		return now
	}

	t.Run("announcements that come slowly keep the gate closed", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l}
		announce(&p, start, 1000, l.openWithin/time.Duration(l.openAt-1)+time.Microsecond)
		if p.open {
			t.Error("open")
		}
	})
	t.Run("announcements that come fast open it", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l}
		announce(&p, start, l.openAt-1, time.Millisecond)
		if p.open {
			t.Error("open too early")
		}
		announce(&p, start.Add(l.openWithin), 1, 0)
		if !p.open {
			t.Error("closed")
		}
	})
	t.Run("so do publishers that wait for one another more often than not, however few", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l}
		for range 100 { // as often as not
			p.waiting(start, contention)
			p.waiting(start, contention-1)
		}
		if p.open {
			t.Error("open although they mostly do not wait")
		}
		for range contentionSeen {
			p.waiting(start, contention)
		}
		if !p.open {
			t.Error("closed")
		}
	})
	t.Run("whether they wait is asked while announcements come often", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l}
		now := start
		for apart, want := range map[time.Duration]bool{frequent - 1: true, frequent: false} {
			for range 2 {
				now = now.Add(apart)
				p.announced(now, 1)
			}
			if p.frequent != want {
				t.Errorf("%s apart they are taken for frequent: %t", apart, p.frequent)
			}
		}
		if p.announced(now.Add(time.Hour), 2); !p.frequent {
			t.Error("two at once are not taken for frequent")
		}
	})
	t.Run("it stays open while looks find enough, and closes when they do not", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l, open: true, began: start}
		now := start
		for range 500 { // five hundred looks of an event each
			now = now.Add(l.keepWithin / time.Duration(l.keepAt+1))
			if p.fetched(now, now, 1); !p.open {
				t.Fatalf("closed after %s", now.Sub(start))
			}
		}
		for end := now.Add(2*l.keepWithin + 2*l.look); p.open; now = now.Add(l.look) {
			if p.fetched(now, now, 0); now.After(end) {
				t.Fatal("open although nothing comes")
			}
		}
	})
	t.Run("while it is open it looks again and again, and rests longer after a slow look", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l, open: true, began: start}
		for range 3 {
			if p.fetched(start, start, 0); p.next.Sub(start) != l.look {
				t.Errorf("the next look is in %s, want %s", p.next.Sub(start), l.look)
			}
		}
		for busy, share := range map[bool]time.Duration{false: lookShare, true: lookShareBusy} {
			p.busy = busy
			if p.fetched(start, start.Add(l.look), 1); p.next.Sub(start) != (1+share)*l.look {
				t.Errorf("busy: %t: after a slow look the next is in %s", busy, p.next.Sub(start))
			}
		}
	})
	t.Run("it is busy by the rate of a window, not by what one look finds", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l, open: true, began: start}
		if p.fetched(start, start, l.busyAt); p.busy {
			t.Error("busy after one look")
		}
		now := start
		for _, events := range []int{l.busyAt, l.busyAt - 1, l.busyAt} {
			p.set(now, true)
			p.fetched(now, now, events)
			now = now.Add(l.keepWithin + 1)
			if p.fetched(now, now, 0); p.busy != (events == l.busyAt) {
				t.Errorf("after a window with %d events busy: %t", events, p.busy)
			}
		}
	})
	t.Run("after a look that took very long it rests no longer than after another", func(t *testing.T) {
		t.Parallel()
		for busy, longest := range map[bool]time.Duration{false: longestRest, true: longestRestBusy} {
			p := pace{limits: l, open: true, busy: busy, began: start.Add(time.Second)} // a fresh window
			end := start.Add(time.Second)
			if p.fetched(start, end, 1); p.next.Sub(end) != longest {
				t.Errorf("busy: %t: it rests for %s", busy, p.next.Sub(end))
			}
		}
	})
	t.Run("while it is closing it looks ever less often, until something has changed or was found", func(t *testing.T) {
		t.Parallel()
		p := pace{limits: l}
		rest := func() time.Duration { return p.next.Sub(start) }
		last := time.Duration(0)
		for range 20 {
			if p.fetched(start, start, 0); rest() < last {
				t.Fatalf("%s after %s", rest(), last)
			}
			last = rest()
		}
		if last != l.lookAtMost {
			t.Errorf("at last it looks every %s, want %s", last, l.lookAtMost)
		}
		if p.lookSoon(start); rest() != l.look {
			t.Errorf("after a change it looks in %s, want %s", rest(), l.look)
		}
		p.fetched(start, start, 0)
		if p.fetched(start, start, 1); rest() != l.look {
			t.Errorf("after an event it looks in %s, want %s", rest(), l.look)
		}
	})
	t.Run("whatever happens, a quiet second closes it", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			p, now := pace{limits: l}, start
			for range rapid.IntRange(0, 100).Draw(t, "steps") {
				now = now.Add(time.Duration(rapid.IntRange(0, 50_000).Draw(t, "µs")) * time.Microsecond)
				switch rapid.IntRange(0, 2).Draw(t, "what") {
				case 0:
					p.announced(now, rapid.IntRange(0, 30).Draw(t, "announcements"))
				case 1:
					p.waiting(now, rapid.IntRange(0, 5).Draw(t, "publishers"))
				case 2:
					p.fetched(now, now, rapid.IntRange(0, 100).Draw(t, "events"))
				}
			}
			for range 500 {
				now = now.Add(l.look)
				p.fetched(now, now, 0)
			}
			if p.open {
				t.Fatal("open")
			}
		})
	})
}
