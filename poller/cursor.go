package poller

// cursor is the forward position in the unpublished index: up to where it has been scanned, what is known
// about late commits below, and how much to fetch next. It is pure.
//
// A fetch reads the new rows (id > position) and, in the same snapshot, what has appeared in the gaps: the ids between the
// watermark and the position that have not been seen. Published rows leave dead entries in the partial index; the
// cursor and the gaps are why a fetch does not have to walk over them. Where there is no gap, nothing can
// appear, and the watermark is the position.
type cursor struct {
	position  int64
	watermark watermark
	window    window
	page      pageSize
	atEnd     bool // the last page was short
}

// gaps returns the ids below the position at which a late commit can appear.
func (c *cursor) gaps() []span { return c.window.gaps(c.watermark.low, c.position) }

// late returns the late commits among the unpublished ids that a fetch found in the gaps. They
// come before the fetch's new rows: an event that was committed before a later one of its aggregate was even drawn can
// be seen together with it. Take them in and call seen, or rewind.
func (c *cursor) late(below []int64) []int64 { return c.window.late(below) }

// seen marks late commits as taken in.
func (c *cursor) seen(late []int64) { c.window.add(late...) }

// scanned takes in a fetch whose late commits have been taken in: the ids of the new rows, rising, of which the
// caller used so many (the rest did not fit and are scanned again) and had asked for limit. It reports whether the page was
// short: nothing is left to fetch. Before the next fetch the sequence may have to be read: see wantsReading.
func (c *cursor) scanned(new []int64, taken, limit int) (short bool) {
	c.watermark.fetched()
	if taken > 0 {
		c.window.add(new[:taken]...)
		c.position = new[taken-1]
	}
	c.atEnd = taken == len(new) && len(new) < limit
	c.window.trim(c.watermark.low, c.position)
	if c.window.complete(c.watermark.low, c.position) {
		c.watermark.complete(c.position)
		c.window.trim(c.position, c.position)
	}
	c.page.after(limit, c.atEnd, taken < len(new))
	return c.atEnd
}

// closed reports whether nothing can appear at or below the position any more.
func (c *cursor) closed() bool { return c.watermark.low >= c.position }

// wantsFetch reports whether a fetch would close the cursor, also if it finds nothing.
func (c *cursor) wantsFetch() bool { return c.watermark.confirming }

// wantsReading reports whether a reading of the sequence would tell something new.
func (c *cursor) wantsReading() bool { return c.watermark.wantsReading(c.position) }

// sequence takes in a reading of the sequence that started after the last fetch had been taken in. It reports
// whether the sequence was set back: then everything is to be read again.
func (c *cursor) sequence(lastValue int64, holders []string) (setBack bool) {
	if c.watermark.read(c.position, lastValue, holders) {
		c.rewind(0)
		return true
	}
	if c.above(lastValue) {
		// An id that the sequence never gave out must not carry the cursor over those that it will give out.
		c.position = lastValue
		c.watermark.rewind(lastValue)
		c.window.trim(c.watermark.low, c.position)
	}
	return false
}

// above reports whether the last fetch has ended at an id that the sequence, read after it, had not given out: somebody chose it, or the
// sequence did not come along with the rows.
func (c *cursor) above(lastValue int64) bool { return c.atEnd && lastValue < c.position }

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

// expected is how many rows a page of limit rows will have: a few at first, and all of them once the pages before it were full.
func (p *pageSize) expected(limit int) int {
	if p.current <= p.first {
		return min(limit, 4)
	}
	return limit
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
