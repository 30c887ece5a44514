package poller

import (
	"slices"
)

// cursor is the forward position in the unpublished index: up to where it has been scanned, what is known
// about late commits below, and how much to fetch next. It is pure.
//
// A fetch reads the new rows (id > position) and, in the same snapshot, the unpublished ids between the
// watermark and the position. Published rows leave dead entries in the partial index; the
// cursor is why a fetch does not have to walk over them.
type cursor struct {
	position  int64
	watermark watermark
	window    window
	page      pageSize
}

// scanned takes in a fetch that was asked for limit rows after the position: the sequence's last value,
// the unpublished ids between watermark and position, and the new rows' ids, both rising. It returns the
// late commits among the first, and whether the page was short: nothing is left to fetch.
//
// taken is how many of the new rows the caller used; the rest did not fit and are scanned again.
func (c *cursor) scanned(lastValue int64, below, new []int64, taken, limit int) (late []int64, short bool) {
	c.watermark.fetched()
	late = c.window.late(below)
	if taken > 0 {
		c.window.add(new[:taken]...)
		c.position = new[taken-1]
	}
	short = taken == len(new) && len(new) < limit
	if short {
		// An id that the sequence never gave out must not carry the cursor over those that it will give out.
		c.position = min(c.position, lastValue)
	}
	if c.position < c.watermark.low { // setval backwards
		c.watermark.rewind(c.position)
	}
	c.window.trim(c.watermark.low, c.position)
	c.page.after(short, limit)
	return late, short
}

// rewind takes the cursor back, so that the next fetch reads everything after id again.
func (c *cursor) rewind(id int64) {
	c.position = min(c.position, id)
	c.watermark.rewind(id)
	c.window.trim(c.watermark.low, c.position)
}

// seen marks late commits as taken in.
func (c *cursor) seen(ids []int64) { c.window.add(slices.Sorted(slices.Values(ids))...) }

// pageSize is how many rows a fetch asks for: few at first, twice as many after each full page, few again
// after a short one, so that a backlog is read in large pages and a single event in a small one.
type pageSize struct {
	first, most int
	current     int
}

func (p *pageSize) size() int { return max(p.current, p.first) }

func (p *pageSize) after(short bool, limit int) {
	if short {
		p.current = p.first
	} else if limit >= p.size() {
		p.current = min(p.size()*2, max(p.most, p.first))
	}
}
