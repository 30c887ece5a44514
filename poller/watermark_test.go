package poller

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestWatermark(t *testing.T) {
	t.Parallel()
	t.Run("without holders it takes a fetch that starts after the reading", func(t *testing.T) {
		t.Parallel()
		var w watermark
		w.read(10, 10, nil)
		if w.low != 0 || w.wantsReading(10) {
			t.Errorf("before the fetch: %+v", w)
		}
		w.fetched()
		if w.low != 10 || w.wantsReading(10) {
			t.Errorf("after the fetch: %+v", w)
		}
	})
	t.Run("it waits for every transaction that held the sequence, and for no other", func(t *testing.T) {
		t.Parallel()
		var w watermark
		w.read(10, 10, []string{"a", "b"})
		for _, now := range [][]string{{"a", "b", "c"}, {"b", "c"}, {"a", "b"}} {
			w.fetched()
			w.read(20, 20, now)
			if w.confirming || w.low != 0 || !w.wantsReading(20) {
				t.Fatalf("with %v: %+v", now, w)
			}
		}
		w.fetched()
		w.read(30, 30, []string{"c", "d"})
		w.fetched()
		if w.low != 10 {
			t.Errorf("watermark %d", w.low)
		}
	})
	t.Run("a name that comes back after its transaction has ended is another one", func(t *testing.T) {
		t.Parallel()
		var w watermark
		w.read(10, 10, []string{"a", "b"})
		w.read(10, 10, []string{"b"})
		w.read(10, 10, []string{"a"})
		w.fetched()
		if w.low != 10 {
			t.Errorf("watermark %d", w.low)
		}
	})
	t.Run("it asks for a reading only where the cursor has moved on", func(t *testing.T) {
		t.Parallel()
		w := watermark{low: 5, drawn: 9}
		if w.wantsReading(5) || !w.wantsReading(6) {
			t.Errorf("%+v", w)
		}
	})
	t.Run("an id above what the sequence has given out proves nothing", func(t *testing.T) {
		t.Parallel()
		var w watermark
		w.read(1000, 10, nil)
		w.fetched()
		if w.low != 10 || !w.wantsReading(1000) {
			t.Errorf("%+v", w)
		}
	})
	t.Run("a sequence that was set back leaves nothing known", func(t *testing.T) {
		t.Parallel()
		for _, confirming := range []bool{false, true} {
			w := watermark{low: 5, drawn: 10, candidate: 8, confirming: confirming}
			if !w.read(10, 9, nil) || w.low != 0 || w.confirming {
				t.Errorf("%+v", w)
			}
			if w.read(0, 9, nil) || w.read(0, 10, nil) {
				t.Errorf("set back twice: %+v", w)
			}
		}
	})
	t.Run("rewinding gives up what it touches", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct {
			to, low    int64
			confirming bool
		}{{4, 4, false}, {5, 5, false}, {7, 5, false}, {8, 5, true}, {9, 5, true}} {
			w := watermark{low: 5, drawn: 10, candidate: 8, confirming: true}
			w.rewind(tc.to)
			if w.low != tc.low || w.confirming != tc.confirming {
				t.Errorf("to %d: %+v", tc.to, w)
			}
			w.fetched()
			if want := tc.low; !tc.confirming && w.low != want {
				t.Errorf("to %d, after a fetch: %+v", tc.to, w)
			}
		}
	})
}

// TestWindow compares the window with a set.
func TestWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.Custom(func(t *rapid.T) []int64 {
			list := rapid.SliceOfNDistinct(rapid.Int64Range(1, 40), 0, 12, rapid.ID).Draw(t, "ids")
			slices.Sort(list)
			return list
		})
		var w window
		model := map[int64]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				list := ids.Draw(t, "add")
				w.add(list...)
				for _, id := range list {
					model[id] = true
				}
			},
			"late": func(t *rapid.T) {
				list := ids.Draw(t, "asked")
				var want []int64
				for _, id := range list {
					if !model[id] {
						want = append(want, id)
					}
				}
				if late := w.late(list); !slices.Equal(late, want) {
					t.Fatalf("late %v, want %v", late, want)
				}
			},
			"trim": func(t *rapid.T) {
				low := rapid.Int64Range(0, 41).Draw(t, "watermark")
				cursor := rapid.Int64Range(0, 41).Draw(t, "cursor")
				w.trim(low, cursor)
				for id := range model {
					if id <= low || id > cursor {
						delete(model, id)
					}
				}
			},
			"": func(t *rapid.T) {
				if len(w.seen) != len(model) || !slices.IsSorted(w.seen) {
					t.Fatalf("window %v, model %v", w.seen, model)
				}
				for _, id := range w.seen {
					if !model[id] {
						t.Fatalf("window %v, model %v", w.seen, model)
					}
				}
			},
		})
	})
}

// TestWindowGaps compares the gaps with what was not added, and with what is late in them.
func TestWindowGaps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		low := int64(below(5).Draw(t, "watermark"))
		cursor := low + int64(below(30).Draw(t, "ids"))
		var w window
		var unseen []int64
		for id := low + 1; id <= cursor; id++ {
			if rapid.Bool().Draw(t, "seen") {
				w.add(id)
			} else {
				unseen = append(unseen, id)
			}
		}
		var in []int64
		for _, g := range w.gaps(low, cursor) {
			for id := g.first; id <= g.last; id++ {
				in = append(in, id)
			}
		}
		if !slices.Equal(in, unseen) || w.complete(low, cursor) != (len(unseen) == 0) {
			t.Fatalf("the gaps are %v, complete %t, unseen %v", in, w.complete(low, cursor), unseen)
		}
	})
	t.Run("many gaps are one, in which what was seen is not late", func(t *testing.T) {
		t.Parallel()
		var w window
		for id := int64(2); id <= 2*maxGaps+2; id += 2 {
			w.add(id)
		}
		if got := w.gaps(0, 2*maxGaps+3); !slices.Equal(got, []span{{1, 2*maxGaps + 3}}) {
			t.Errorf("%v", got)
		}
		if got := w.late([]int64{1, 2, 3, 4}); !slices.Equal(got, []int64{1, 3}) {
			t.Errorf("late: %v", got)
		}
	})
}
