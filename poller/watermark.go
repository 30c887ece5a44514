package poller

import (
	"slices"
)

// watermark says below which id no event can appear any more. Ids are drawn before they are
// committed, so a fetch up to some id does not mean that everything below it has been seen.
//
// nextval holds a lock on the id sequence until its transaction ends. That gives an exact rule
// (ARCHITECTURE.md, "The fetch loop"): after a fetch that scanned up to M, read the transactions that hold the lock. When
// all of them have ended, and a fetch that started afterwards has been taken in, the watermark is M. M is never
// above what the sequence had given out by then: an id that is not from the sequence proves nothing.
// Its states:
//
//	resting     nothing to prove: the cursor has not moved beyond the watermark, or every id in between has been seen
//	waiting     M is chosen; some of the transactions that drew ids up to M are still open
//	confirming  they have all ended; the next fetch that starts will see whatever they committed
//
// It is pure: the loop tells it about fetches and about readings of the sequence.
type watermark struct {
	low        int64               // no unseen event at or below this id
	drawn      int64               // the sequence's last value at the last reading
	candidate  int64               // M, where it is not resting
	holders    map[string]struct{} // waiting: transactions that have to end first
	confirming bool
}

// rest ends a proof, done or given up, with nothing unseen at or below low.
func (w *watermark) rest(low int64) { *w = watermark{low: low, drawn: w.drawn} }

// fetched takes in a fetch that started after the last call of any of watermark's methods.
func (w *watermark) fetched() {
	if w.confirming {
		w.rest(max(w.low, w.candidate))
	}
}

// complete takes in that every id up to cursor has been seen.
func (w *watermark) complete(cursor int64) {
	w.rest(max(w.low, cursor))
}

// wantsReading reports whether it can use a reading of the sequence now: the cursor has moved on, or it waits
// for some of the holders to end.
func (w *watermark) wantsReading(cursor int64) bool {
	return !w.confirming && (len(w.holders) > 0 || cursor > w.low)
}

// read takes in a reading of the sequence that started after a fetch that scanned up to cursor had ended: its
// last value, and the transactions that held its lock after that. It reports whether the sequence was set back: then
// nothing is known any more.
func (w *watermark) read(cursor, lastValue int64, now []string) (setBack bool) {
	if lastValue < w.drawn {
		*w = watermark{drawn: lastValue}
		return true
	}
	w.drawn = lastValue
	if len(w.holders) == 0 { // resting: choose M
		w.candidate = min(cursor, w.drawn)
		if w.candidate <= w.low { // what the cursor has seen is not from the sequence
			w.rest(w.low)
			return false
		}
		w.holders = make(map[string]struct{}, len(now))
		for _, tx := range now {
			w.holders[tx] = struct{}{}
		}
	} else {
		for tx := range w.holders {
			if !slices.Contains(now, tx) {
				delete(w.holders, tx)
			}
		}
	}
	w.confirming = len(w.holders) == 0
	return false
}

// rewind takes the watermark back to id, because something below was found or may appear.
func (w *watermark) rewind(id int64) {
	if id < w.low {
		w.rest(id)
	} else if id < w.candidate {
		w.rest(w.low)
	}
}

// window remembers which ids above the watermark have been seen, so that an unpublished one that
// has not is known as a late commit. The ids are sorted; it is as long as what was scanned
// since the watermark, eight bytes an id.
type window struct {
	seen []int64
}

// add marks ids as seen. They come in rising order.
func (w *window) add(ids ...int64) {
	for _, id := range ids {
		if n := len(w.seen); n == 0 || w.seen[n-1] < id {
			w.seen = append(w.seen, id)
		} else if i, found := slices.BinarySearch(w.seen, id); !found {
			w.seen = slices.Insert(w.seen, i, id)
		}
	}
}

// span is a range of ids, both ends included.
type span struct{ first, last int64 }

// maxGaps bounds how many gaps are told apart. Transactions that were rolled back leave them, until the watermark has passed.
const maxGaps = 1000

// complete reports whether every id above watermark and up to cursor has been seen. It must have been trimmed to them.
func (w *window) complete(watermark, cursor int64) bool {
	return uint64(cursor)-uint64(watermark) == uint64(len(w.seen))
}

// gaps returns the ids above watermark and up to cursor that have not been seen, in rising order; as one span with all
// in between where there are many gaps.
func (w *window) gaps(watermark, cursor int64) (list []span) {
	if w.complete(watermark, cursor) {
		return nil
	}
	last := watermark
	for _, id := range w.seen {
		if id > last+1 {
			list = append(list, span{last + 1, id - 1})
		}
		last = id
	}
	if last < cursor {
		list = append(list, span{last + 1, cursor})
	}
	if n := len(list); n > maxGaps {
		return []span{{list[0].first, list[n-1].last}}
	}
	return list
}

// late returns those of the ids that have not been seen. Both are in rising order. It costs by how many are asked
// for and not by how long the window is, which a publisher that stays open makes long.
func (w *window) late(ids []int64) (late []int64) {
	from := 0
	for _, id := range ids {
		i, found := slices.BinarySearch(w.seen[from:], id)
		from += i
		if !found {
			late = append(late, id)
		}
	}
	return late
}

// trim forgets the ids that a watermark has passed, and those above a cursor that went back.
func (w *window) trim(watermark, cursor int64) {
	from, found := slices.BinarySearch(w.seen, watermark)
	if found {
		from++
	}
	to, found := slices.BinarySearch(w.seen, cursor)
	if found {
		to++
	}
	if from > 0 || to < len(w.seen) {
		w.seen = append(w.seen[:0], w.seen[from:max(from, to)]...)
	}
}
