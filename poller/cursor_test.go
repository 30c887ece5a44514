package poller

import (
	"context"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestCursorSeesEveryCommitOnce lets publishers draw ids, commit them late or not at all, while fetches and
// readings of the sequence's holders alternate. Aggregates are not locked, so late commits come within them too.
func TestCursorSeesEveryCommitOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newCursorModel(t)
		for range 150 {
			m.step()
		}
		m.finish()
	})
}

// cursorModel is a table, a cursor that reads it, and what has been seen.
type cursorModel struct {
	*rapid.T
	db        *table
	c         cursor
	seen      map[int64]bool // read and not to be read again
	ever      map[int64]bool // read at least once
	committed map[int64]int  // when
	clock     int
}

func newCursorModel(t *rapid.T) *cursorModel {
	return &cursorModel{
		T: t, db: &table{}, seen: map[int64]bool{}, ever: map[int64]bool{}, committed: map[int64]int{},
		c: cursor{page: pageSize{first: 1 + below(3).Draw(t, "first page"), most: 6}},
	}
}

func (m *cursorModel) step() {
	switch below(12).Draw(m.T, "step") {
	case 0:
		return
	case 1, 2:
		m.draw(m.db.begin(tableKey(below(3).Draw(m.T, "aggregate"))))
	case 3:
		if n := len(m.db.open); n > 0 {
			m.draw(m.db.open[below(n).Draw(m.T, "transaction")])
		}
	case 4, 5, 6:
		m.end(below(8).Draw(m.T, "roll back") == 7)
	case 7:
		m.publish()
	case 8:
		m.foreign()
	default:
		m.fetch(true)
	}
	if lowest := m.db.lowestOpen(); m.c.watermark.low >= lowest {
		m.Fatalf("watermark %d has passed %d, which is not committed", m.c.watermark.low, lowest)
	}
}

func (m *cursorModel) draw(tx *transaction) {
	m.Logf("%s draws %d of %d", tx.name, m.db.draw(tx, 1), tx.key.ID[15])
}

func (m *cursorModel) end(rollback bool) {
	n := len(m.db.open)
	if n == 0 {
		return
	}
	tx := m.db.open[below(n).Draw(m.T, "transaction")]
	if rollback {
		m.Logf("%s rolls back", tx.name)
		m.db.rollback(tx)
		return
	}
	m.commit(tx)
}

func (m *cursorModel) commit(tx *transaction) {
	m.Logf("%s commits", tx.name)
	m.clock++
	for _, r := range tx.drawn {
		m.committed[r.id] = m.clock
	}
	m.db.commit(tx)
}

// publish has an event that was seen disappear from the unpublished ones.
func (m *cursorModel) publish() {
	for _, r := range m.db.unpublished(0, math.MaxInt64) {
		if m.ever[r.id] && rapid.Bool().Draw(m.T, "publish") {
			m.Logf("%d is published", r.id)
			r.published = true
		}
	}
}

// foreign commits a row whose id the sequence has not reached.
func (m *cursorModel) foreign() {
	id := m.db.lastValue + 2 + int64(below(10).Draw(m.T, "ahead"))
	if m.db.taken(id) {
		return
	}
	tx := m.db.begin(tableKey(below(3).Draw(m.T, "aggregate")))
	m.db.insert(tx, id, 1)
	m.Logf("foreign id %d", id)
	m.commit(tx)
}

// fetch does what the loop does: late commits first, then what fits of the page, then the holders.
func (m *cursorModel) fetch(random bool) (short bool) {
	rewind, left := false, 0
	limit := m.c.page.size()
	if random {
		limit = 1 + below(limit).Draw(m.T, "limit")
		rewind = below(8).Draw(m.T, "rewind") == 7
	}
	page, _ := m.db.fetch(context.Background(), &m.c, limit, math.MaxInt, true)
	if random && len(page.rows) > 0 {
		left = max(0, below(8).Draw(m.T, "left")+len(page.rows)-7)
	}
	late := m.c.late(page.below)
	if len(late) > 0 && rewind {
		m.c.rewind(late[0] - 1)
		m.forget()
		m.Logf("rewound to %d", m.c.position)
		return false
	}
	m.see(late)
	m.c.seen(late)
	ids := make([]int64, len(page.rows))
	for i, r := range page.rows {
		ids[i] = r.id
	}
	taken := len(ids) - left
	m.see(ids[:taken])
	short = m.c.scanned(ids, taken, limit)
	m.Logf("fetched %d of %d: late %v, new %v, up to %d, watermark %d", taken, limit, late, ids, m.c.position, m.c.watermark.low)
	if short && left > 0 || len(page.rows) == limit && short {
		m.Fatalf("a page of %d rows, of which %d were left, counts as short of %d", len(page.rows), left, limit)
	}
	if m.c.wantsReading() {
		m.readSequence(random)
	}
	m.forget()
	return short
}

// readSequence reads its last value first, and then the holders.
func (m *cursorModel) readSequence(random bool) {
	lastValue := m.db.lastValue
	for random && rapid.Bool().Draw(m.T, "meanwhile") {
		if rapid.Bool().Draw(m.T, "draw") {
			m.draw(m.db.begin(tableKey(below(3).Draw(m.T, "aggregate"))))
		} else {
			m.end(false)
		}
	}
	m.c.sequence(lastValue, m.db.holders())
}

// see checks what comes to be seen, in the order in which it is handed on.
func (m *cursorModel) see(ids []int64) {
	for _, id := range ids {
		if m.seen[id] {
			m.Fatalf("%d is seen twice", id)
		}
		r := m.db.record(id)
		for _, earlier := range m.db.records {
			if earlier.key == r.key && earlier.id < id && m.committed[earlier.id] <= m.committed[id] && !m.ever[earlier.id] {
				m.Fatalf("%d is seen before %d of its aggregate, which was committed first", id, earlier.id)
			}
		}
		m.seen[id], m.ever[id] = true, true
	}
}

// forget allows what is above the position to be seen again.
func (m *cursorModel) forget() {
	maps.DeleteFunc(m.seen, func(id int64, _ bool) bool { return id > m.c.position })
}

// finish ends all transactions, reads to the end and twice more: then everything has been seen.
func (m *cursorModel) finish() {
	m.Log("finish")
	for len(m.db.open) > 0 {
		m.commit(m.db.open[0])
	}
	for !m.fetch(false) {
	}
	m.fetch(false)
	m.fetch(false)
	for _, r := range m.db.records {
		if !m.ever[r.id] {
			m.Fatalf("%d has never been seen", r.id)
		}
	}
	upTo := min(m.c.position, m.db.lastValue)
	low := m.c.watermark.low
	for id := upTo + 1; id <= low; id++ {
		if !m.db.taken(id) {
			m.Fatalf("the watermark is %d, and %d is not even taken", low, id)
		}
	}
	if low < upTo {
		m.Fatalf("at rest the watermark is %d, the cursor %d", low, upTo)
	}
	for _, id := range m.c.window.seen {
		if id <= upTo {
			m.Fatalf("the window still holds %v, the watermark is %d", m.c.window.seen, m.c.watermark.low)
		}
	}
}

func TestCursor(t *testing.T) {
	t.Parallel()
	scan := func(c *cursor, limit int, ids ...int64) bool { return c.scanned(ids, len(ids), limit) }
	prove := func(c *cursor, lastValue int64) {
		c.sequence(lastValue, nil)
		c.scanned(nil, 0, 10)
	}
	t.Run("a full page says that there may be more", func(t *testing.T) {
		t.Parallel()
		var c cursor
		if scan(&c, 2, 1, 2) || c.position != 2 {
			t.Errorf("short, or position %d", c.position)
		}
		if !scan(&c, 2, 3) || c.position != 3 {
			t.Errorf("not short, or position %d", c.position)
		}
	})
	t.Run("rows that did not fit are scanned again", func(t *testing.T) {
		t.Parallel()
		var c cursor
		if c.scanned([]int64{4, 5, 6}, 1, 10) || c.position != 4 {
			t.Errorf("short, or position %d", c.position)
		}
		if c.scanned([]int64{5, 6}, 0, 10) || c.position != 4 {
			t.Errorf("short, or position %d", c.position)
		}
	})
	t.Run("it is closed once a fetch that follows the reading of the sequence has been taken in", func(t *testing.T) {
		t.Parallel()
		var c cursor
		scan(&c, 10, 1, 3)
		if c.closed() || c.wantsFetch() || !c.wantsReading() {
			t.Errorf("after a fetch: %+v", c)
		}
		c.sequence(3, nil)
		if c.closed() || !c.wantsFetch() || c.wantsReading() {
			t.Errorf("after the reading: %+v", c)
		}
		scan(&c, 10)
		if !c.closed() || c.wantsFetch() || c.wantsReading() {
			t.Errorf("after the next fetch: %+v", c)
		}
	})
	t.Run("an id past the sequence does not carry it away", func(t *testing.T) {
		t.Parallel()
		var c cursor
		scan(&c, 10, 1, 3, 1000)
		if !c.wantsReading() {
			t.Error("the sequence is not to be read")
		}
		c.sequence(3, nil)
		if c.position != 3 || !slices.Equal(c.window.seen, []int64{1, 3}) {
			t.Errorf("position %d, window %v", c.position, c.window.seen)
		}
	})
	t.Run("nor does it once the watermark has come to the end of the sequence", func(t *testing.T) {
		t.Parallel()
		var c cursor
		scan(&c, 10, 1, 3)
		prove(&c, 3)
		scan(&c, 10, 1000)
		if !c.wantsReading() {
			t.Error("the sequence is not to be read")
		}
		c.sequence(3, nil)
		if c.position != 3 {
			t.Errorf("position %d", c.position)
		}
	})
	t.Run("many ids past the sequence are walked through, and prove nothing", func(t *testing.T) {
		t.Parallel()
		var c cursor
		scan(&c, 2, 1000, 1001)
		c.sequence(3, nil)
		if c.position != 1001 {
			t.Errorf("position %d", c.position)
		}
		scan(&c, 2, 1002, 1003)
		if c.watermark.low > 3 {
			t.Errorf("the watermark is %d, and the sequence will give out 4", c.watermark.low)
		}
	})
	t.Run("a sequence that was set back has everything read again", func(t *testing.T) {
		t.Parallel()
		var c cursor
		scan(&c, 10, 100)
		prove(&c, 100)
		if c.watermark.low != 100 {
			t.Fatalf("watermark %d", c.watermark.low)
		}
		// 41 was drawn after the sequence had been set back to 40, and may be open.
		if !c.sequence(42, nil) || c.watermark.low != 0 || c.position != 0 || len(c.window.seen) != 0 {
			t.Errorf("watermark %d, position %d, window %v", c.watermark.low, c.position, c.window.seen)
		}
	})
	t.Run("also before the watermark has come as far", func(t *testing.T) {
		t.Parallel()
		var c cursor
		scan(&c, 10, 50)
		prove(&c, 50)
		scan(&c, 10, 100)
		c.sequence(100, nil)
		c.sequence(60, nil)
		scan(&c, 10)
		if c.watermark.low > 60 {
			t.Errorf("the watermark is %d, and the sequence will give out 61", c.watermark.low)
		}
	})
	t.Run("rewinding takes back what was known above", func(t *testing.T) {
		t.Parallel()
		var c cursor
		scan(&c, 10, 2, 4, 6)
		prove(&c, 6)
		scan(&c, 10, 7, 9)
		c.rewind(3)
		if c.position != 3 || c.watermark.low != 3 || len(c.window.seen) != 0 {
			t.Errorf("position %d, watermark %d, window %v", c.position, c.watermark.low, c.window.seen)
		}
		c.rewind(5)
		if c.position != 3 || c.watermark.low != 3 {
			t.Errorf("rewinding moved forward: position %d, watermark %d", c.position, c.watermark.low)
		}
	})
}

func TestPageSize(t *testing.T) {
	t.Parallel()
	t.Run("doubles after full pages up to the most", func(t *testing.T) {
		t.Parallel()
		p := pageSize{first: 50, most: 300}
		var sizes []int
		for range 5 {
			sizes = append(sizes, p.size())
			p.after(p.size(), false, false)
		}
		if !slices.Equal(sizes, []int{50, 100, 200, 300, 300}) {
			t.Errorf("sizes %v", sizes)
		}
	})
	t.Run("starts again after a short page", func(t *testing.T) {
		t.Parallel()
		p := pageSize{first: 50, most: 300, current: 200}
		p.after(200, true, false)
		if p.size() != 50 {
			t.Errorf("size %d", p.size())
		}
	})
	t.Run("does not grow because a page was kept small for lack of room", func(t *testing.T) {
		t.Parallel()
		p := pageSize{first: 50, most: 300, current: 200}
		p.after(10, false, false)
		if p.size() != 200 {
			t.Errorf("size %d", p.size())
		}
	})
	t.Run("shrinks to one row while rows do not fit", func(t *testing.T) {
		t.Parallel()
		p := pageSize{first: 50, most: 300}
		var sizes []int
		for range 5 {
			sizes = append(sizes, p.size())
			p.after(p.size(), false, true)
		}
		if !slices.Equal(sizes, []int{50, 12, 3, 1, 1}) {
			t.Errorf("sizes %v", sizes)
		}
	})
}
