package poller

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

// late returns the late commits among the unpublished ids that a fetch found between watermark and position. They
// come before the fetch's new rows: an event that was committed before a later one of its aggregate was even drawn can
// be seen together with it. Take them in and call seen, or rewind.
func (c *cursor) late(below []int64) []int64 { return c.window.late(below) }

// seen marks late commits as taken in.
func (c *cursor) seen(late []int64) { c.window.add(late...) }

// scanned takes in a fetch whose late commits have been taken in: the sequence's last value, and the ids of
// the new rows, rising, of which the caller used so many (the rest did not fit and are scanned again) and had
// asked for limit. It reports whether the page was short: nothing is left to fetch. A sequence that was set back has
// everything read again.
func (c *cursor) scanned(lastValue int64, new []int64, taken, limit int) (short bool) {
	if c.watermark.fetched(lastValue) {
		c.rewind(0)
		return false
	}
	if taken > 0 {
		c.window.add(new[:taken]...)
		c.position = new[taken-1]
	}
	short = taken == len(new) && len(new) < limit
	if short {
		// An id that the sequence never gave out must not carry the cursor over those that it will give out.
		c.position = min(c.position, lastValue)
	}
	c.window.trim(c.watermark.low, c.position)
	c.page.after(limit, short, taken < len(new))
	return short
}

// rewind takes the cursor back, so that the next fetch reads everything after id again.
func (c *cursor) rewind(id int64) {
	c.position = min(c.position, id)
	c.watermark.rewind(id)
	c.window.trim(c.watermark.low, c.position)
}

// pageSize is how many rows a fetch asks for: few at first, twice as many after each full page, few again after a short
// one, so that a backlog is read in large pages and a single event in a small one. The fewer the rows, the more
// bytes each may have: after a page that was cut because a row had more, it is a quarter, down to the one row that
// always fits.
type pageSize struct {
	first, most int
	current     int // 0: first
}

func (p *pageSize) size() int {
	if p.current == 0 {
		return p.first
	}
	return p.current
}

// after takes in a page of limit rows that was short, or cut.
func (p *pageSize) after(limit int, short, cut bool) {
	switch {
	case cut:
		p.current = max(1, limit/4)
	case short:
		p.current = 0
	case limit >= p.size():
		p.current = min(2*p.size(), p.most)
	}
}
