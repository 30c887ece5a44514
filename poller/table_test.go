package poller

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/dispatch"
)

// table is events.outbox in memory, with the meaning of the loop's statements (db/queries/events). Each statement runs
// at one moment, on what is committed then; the clock stands still unless a test moves it.
type table struct {
	now       int64 // microseconds
	lastValue int64 // of the id sequence
	records   []*record
	open      []*transaction
	opened    int
	holdBack  bool
}

// record is a committed row.
type record struct {
	id         int64
	key        aggregate
	payload    json.RawMessage
	retryCount int32
	retryAt    int64 // microseconds, noRetry or deadLetter
	published  bool
}

const (
	noRetry    = math.MinInt64 // next_retry_at is NULL
	deadLetter = math.MaxInt64
)

// transaction has drawn ids and not ended.
type transaction struct {
	name  string
	key   aggregate
	drawn []*record
}

func tableKey(n int) aggregate {
	return aggregate{"thing", uuid.UUID{15: byte(n)}}
}

// begin opens a transaction that writes one aggregate.
func (db *table) begin(key aggregate) *transaction {
	db.opened++
	tx := &transaction{name: "7/" + strconv.Itoa(db.opened), key: key}
	db.open = append(db.open, tx)
	return tx
}

// draw gives the transaction the next id of the sequence.
func (db *table) draw(tx *transaction, size int) int64 {
	db.lastValue++
	for db.taken(db.lastValue) {
		db.lastValue++ // the insert would have failed, and the id is used up
	}
	db.insert(tx, db.lastValue, size)
	return db.lastValue
}

// taken reports whether there is a row with the id, committed or not.
func (db *table) taken(id int64) bool {
	is := func(r *record) bool { return r.id == id }
	return slices.ContainsFunc(db.records, is) ||
		slices.ContainsFunc(db.open, func(tx *transaction) bool { return slices.ContainsFunc(tx.drawn, is) })
}

// insert gives the transaction a row with an id that is not from the sequence now.
func (db *table) insert(tx *transaction, id int64, size int) {
	tx.drawn = append(tx.drawn, &record{id: id, key: tx.key, payload: make(json.RawMessage, size), retryAt: noRetry})
}

func (db *table) commit(tx *transaction) {
	db.records = append(db.records, tx.drawn...)
	slices.SortFunc(db.records, func(a, b *record) int { return cmp.Compare(a.id, b.id) })
	db.rollback(tx)
}

func (db *table) rollback(tx *transaction) {
	db.open = slices.DeleteFunc(db.open, func(o *transaction) bool { return o == tx })
}

// writes reports whether an open transaction writes the aggregate.
func (db *table) writes(key aggregate) bool {
	return slices.ContainsFunc(db.open, func(tx *transaction) bool { return tx.key == key })
}

// lowestOpen is the smallest id that is drawn and not committed.
func (db *table) lowestOpen() int64 {
	lowest := int64(math.MaxInt64)
	for _, tx := range db.open {
		for _, r := range tx.drawn {
			lowest = min(lowest, r.id)
		}
	}
	return lowest
}

func (db *table) record(id int64) *record {
	i := slices.IndexFunc(db.records, func(r *record) bool { return r.id == id })
	if i < 0 {
		return nil
	}
	return db.records[i]
}

func (db *table) state(r *record) state {
	switch {
	case r.retryAt == noRetry:
		return pending
	case r.retryAt <= db.now:
		return due
	case r.retryAt < deadLetter:
		return waiting
	default:
		return dead
	}
}

// blocked reports whether an event of the aggregate before id is in retry.
func (db *table) blocked(key aggregate, id int64) bool {
	return db.holdBack && slices.ContainsFunc(db.records, func(b *record) bool {
		return b.key == key && b.id < id && !b.published && b.retryAt != noRetry && b.retryAt < deadLetter
	})
}

// unpublished returns the rows of an id range.
func (db *table) unpublished(after, upTo int64) (list []*record) {
	for _, r := range db.records {
		if !r.published && r.id > after && r.id <= upTo {
			list = append(list, r)
		}
	}
	return list
}

func (db *table) read(r *record) *row {
	s := db.state(r)
	return &row{
		id: r.id, aggregate: r.key, eventType: "Happened", retryCount: r.retryCount, state: s, blocked: s == pending && db.blocked(r.key, r.id),
		occurredAt: pgtype.Timestamptz{Time: time.UnixMicro(0), Valid: true},
	}
}

func (db *table) fetch(_ context.Context, c *cursor, limit, maxBytes int, holdBack bool) (page, error) {
	var p page
	for _, g := range c.gaps() {
		for _, r := range db.unpublished(g.first-1, g.last) {
			p.below = append(p.below, r.id)
		}
	}
	for _, r := range firstOf(db.unpublished(c.position, math.MaxInt64), limit) {
		found := db.read(r)
		found.blocked = found.blocked && holdBack
		if db.handleable(found) && int64(len(r.payload)) <= share(limit, maxBytes) {
			found.payload = r.payload
		}
		p.rows = append(p.rows, found)
	}
	return p, nil
}

func (db *table) fetchNew(_ context.Context, c *cursor, limit, maxBytes int) (p page, err error) {
	for _, r := range firstOf(db.unpublished(c.position, math.MaxInt64), limit) {
		found := db.read(r)
		found.blocked = false
		if found.state == pending && int64(len(r.payload)) <= share(limit, maxBytes) {
			found.payload = r.payload
		}
		p.rows = append(p.rows, found)
	}
	return p, nil
}

func (db *table) fetchByID(_ context.Context, ids []int64, maxBytes int) (rows []*row, err error) {
	list := db.unpublished(math.MinInt64, math.MaxInt64)
	list = slices.DeleteFunc(list, func(r *record) bool { return !slices.Contains(ids, r.id) })
	for _, r := range list {
		found := db.read(r)
		if db.handleable(found) && maxBytes > 0 {
			found.payload = r.payload
		}
		maxBytes -= len(r.payload)
		rows = append(rows, found)
	}
	return rows, nil
}

func (db *table) handleable(r *row) bool { return r.state == pending && !r.blocked }

func firstOf[T any](list []T, n int) []T { return list[:min(n, len(list))] }

func (db *table) reload(_ context.Context, lanes []reload, perLane, maxBytes int) ([]reloadResult, error) {
	results := make([]reloadResult, len(lanes))
	for i, l := range lanes {
		bytes := 0
		for _, r := range db.unpublished(l.from-1, math.MaxInt64) {
			if r.key != l.key || len(results[i].rows) == perLane {
				continue
			}
			results[i].blocked = db.blocked(l.key, l.from)
			found := db.read(r)
			if (found.state == pending || found.state == due) && bytes < maxBytes {
				found.payload = r.payload
			}
			bytes += len(r.payload)
			results[i].rows = append(results[i].rows, found)
		}
	}
	return results, nil
}

func (db *table) fetchDue(_ context.Context, at *retries, limit int) (d dueRows, err error) {
	for _, r := range db.unpublished(math.MinInt64, math.MaxInt64) {
		switch db.state(r) {
		case due:
			if db.after(at, r) {
				d.rows = append(d.rows, dueRow{r.id, r.key, timestamp(r.retryAt)})
			}
		case waiting:
			if in := time.Duration(r.retryAt-db.now) * time.Microsecond; !d.waits || in < d.nextIn {
				d.nextIn, d.waits = in, true
			}
		case dead:
			d.dead = true
		}
	}
	slices.SortStableFunc(d.rows, func(a, b dueRow) int { return a.at.Time.Compare(b.at.Time) })
	d.rows = firstOf(d.rows, limit)
	return d, nil
}

// after reports whether a row is behind the position of the retries.
func (db *table) after(at *retries, r *record) bool {
	if at.afterTime.InfinityModifier == pgtype.NegativeInfinity {
		return true
	}
	position := at.afterTime.Time.UnixMicro()
	return r.retryAt > position || (r.retryAt == position && r.id > at.afterID)
}

func (db *table) sweep(_ context.Context, after, upTo int64) (rows []eventsdb.SweepSliceRow, reached int64, err error) {
	if after == 0 {
		after = math.MinInt64
	}
	for _, r := range db.unpublished(after, upTo) {
		if s := db.state(r); (s == pending || s == due) && !db.blocked(r.key, r.id) {
			rows = append(rows, eventsdb.SweepSliceRow{ID: r.id, AggregateType: r.key.Type, AggregateID: r.key.ID, NextRetryAt: timestamp(r.retryAt)})
		}
	}
	return rows, upTo, nil
}

func (db *table) holders() (names []string) {
	for _, tx := range db.open {
		names = append(names, tx.name)
	}
	return names
}

func (db *table) readSequence(context.Context) (sequence, error) {
	return sequence{lastValue: db.lastValue, holders: db.holders()}, nil
}

// settle writes outcomes with the guards of the settle statements, and returns them as committed.
func (db *table) settle(batch []outcome) (list []settlement) {
	for _, o := range batch {
		r := db.record(o.row.id)
		s := settlement{outcome: o, applied: true}
		fits := r != nil && !r.published && r.retryCount == o.row.retryCount
		switch o.result.Kind {
		case dispatch.Published:
			if r != nil {
				r.published = true
			}
		case dispatch.Retry:
			s.applied, s.dueAt = fits, time.Now().Add(o.result.Delay)
			if fits {
				r.retryCount++
				r.retryAt = db.now + o.result.Delay.Microseconds()
				s.retryAt = timestamp(r.retryAt)
			}
		case dispatch.Dead:
			if fits {
				r.retryCount, r.retryAt = max(r.retryCount+1, 10), deadLetter
			}
		}
		list = append(list, s)
	}
	return list
}

func timestamp(us int64) pgtype.Timestamptz {
	switch us {
	case noRetry:
		return pgtype.Timestamptz{}
	case deadLetter:
		return pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.Infinity}
	default:
		return pgtype.Timestamptz{Valid: true, Time: time.UnixMicro(us)}
	}
}
