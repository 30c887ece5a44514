package poller

import (
	"testing"
	"time"
)

func TestFallback(t *testing.T) {
	t.Parallel()
	const slow, fast = time.Second, 250 * time.Millisecond
	fresh := func() *fallback { return &fallback{slow: slow, fast: fast} }
	t.Run("the first poll is at once", func(t *testing.T) {
		t.Parallel()
		if at := fresh().at(true, noon); at.After(noon) {
			t.Errorf("at %s", at)
		}
	})
	t.Run("it polls slowly while notifications arrive", func(t *testing.T) {
		t.Parallel()
		f := fresh()
		f.fetched(noon, true)
		for _, later := range []time.Duration{0, slow / 2, slow - 1, slow} {
			if at := f.at(true, noon.Add(later)); !at.Equal(noon.Add(slow)) {
				t.Errorf("%s later it polls at %s", later, at)
			}
		}
	})
	t.Run("and fast while they do not", func(t *testing.T) {
		t.Parallel()
		f := fresh()
		f.fetched(noon, false)
		if at := f.at(false, noon); !at.Equal(noon.Add(fast)) {
			t.Errorf("at %s", at)
		}
	})
	t.Run("a listener that fails brings the poll forward", func(t *testing.T) {
		t.Parallel()
		f := fresh()
		f.fetched(noon, true)
		failed := noon.Add(slow / 10)
		if at := f.at(false, failed); !at.Equal(failed.Add(fast)) {
			t.Errorf("at %s", at)
		}
		if at := f.at(false, failed.Add(fast/2)); !at.Equal(failed.Add(fast)) {
			t.Errorf("asking again moved it to %s", at)
		}
	})
	t.Run("but never puts it off", func(t *testing.T) {
		t.Parallel()
		f := fresh()
		f.fetched(noon, true)
		late := noon.Add(slow - fast/2)
		for _, listening := range []bool{false, true} {
			if at := f.at(listening, late); !at.Equal(noon.Add(slow)) {
				t.Errorf("listening: %t: at %s", listening, at)
			}
		}
	})
	t.Run("any fetch is as good as a poll", func(t *testing.T) {
		t.Parallel()
		f := fresh()
		f.fetched(noon, true)
		f.fetched(noon.Add(slow/2), true)
		if at := f.at(true, noon.Add(slow/2)); !at.Equal(noon.Add(slow * 3 / 2)) {
			t.Errorf("at %s", at)
		}
	})
	t.Run("it polls fast from when a poll finds an event until a wake does", func(t *testing.T) {
		t.Parallel()
		f := fresh()
		for _, step := range []struct {
			events    int
			byWake    bool
			pollFirst bool
			then      time.Duration
		}{
			{0, false, false, slow},
			{3, false, true, fast},
			{0, false, false, fast},
			{0, true, false, fast}, // a wake that found nothing proves nothing
			{1, false, true, fast},
			{1, true, false, slow},
			{0, false, false, slow},
		} {
			if first := f.found(step.events, step.byWake); first != step.pollFirst {
				t.Errorf("%+v: poll first: %t", step, first)
			}
			if in := f.interval(true); in != step.then {
				t.Errorf("%+v: interval %s", step, in)
			}
			if in := f.interval(false); in != fast {
				t.Errorf("%+v: interval without notifications %s", step, in)
			}
		}
	})
	t.Run("it counts polls in a row that were first", func(t *testing.T) {
		t.Parallel()
		f := fresh()
		f.found(1, false)
		f.found(0, false)
		f.found(2, false)
		if f.missed != 2 {
			t.Errorf("%d polls", f.missed)
		}
	})
}
