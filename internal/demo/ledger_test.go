package demo

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/event"
)

// book is a ledger with a clock that the test moves, in milliseconds.
type book struct {
	*ledger
	shown []attempt
}

func newBook() *book {
	b := &book{}
	b.ledger = newLedger([]time.Duration{time.Second}, func(a attempt) { b.shown = append(b.shown, a) })
	return b
}

func at(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }

var (
	order   = outbox.Message{AggregateType: "order", AggregateID: uuid.UUID{1}, EventType: orderPlaced, CorrelationID: "c"}
	payment = outbox.Message{AggregateType: "payment", AggregateID: uuid.UUID{2}, EventType: paymentRequested, CorrelationID: "c"}
)

// try is one attempt at an event, from one millisecond to another.
func (b *book) try(id int64, number, from, to int, err error) {
	e := received(id, number)
	b.begin(e)
	b.end(e, at(from), 0, err, at(to))
}

// received is an event of order or payment as its handler sees it.
func received(id int64, number int) *outbox.Event {
	return &outbox.Event{ID: id, PublicID: uuid.UUID{15: byte(id)}, Attempt: number, Metadata: event.Metadata{CorrelationID: "c"}}
}

func (b *book) ids() []int64 {
	var ids []int64
	for _, a := range b.shown {
		ids = append(ids, a.id)
	}
	return ids
}

func TestLedger(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")

	t.Run("measures from the acknowledged commit to the handler", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.commit([]int64{1}, at(10))
		b.try(1, 1, 12, 15, nil)
		books, latency, _ := b.read()
		if books.Published != 1 || books.Delivered != 1 || books.Aggregates != 1 || b.underWay() != 0 {
			t.Errorf("books %+v, under way %d", books, b.underWay())
		}
		if latency.N != 1 || latency.P50 != 2*time.Millisecond {
			t.Errorf("latency %+v", latency)
		}
		if a := b.shown[0]; a.latency != 2*time.Millisecond || !a.shown.Equal(at(15)) {
			t.Errorf("shown %+v", a)
		}
	})

	t.Run("counts a handler that was faster than the acknowledgement as 0", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.try(1, 1, 5, 6, nil)
		if len(b.shown) != 0 || b.underWay() != 1 {
			t.Errorf("before the acknowledgement: shown %v, under way %d", b.ids(), b.underWay())
		}
		b.commit([]int64{1}, at(10))
		books, latency, _ := b.read()
		if books.Early != 1 || latency.N != 1 || latency.Max != 0 || b.underWay() != 0 || len(b.shown) != 1 {
			t.Errorf("books %+v, latency %+v, shown %v", books, latency, b.ids())
		}
	})

	t.Run("finds an event whose transaction was rolled back", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.abandon([]int64{1})
		if books, _, _ := b.read(); books.RolledBack != 1 || books.Ghosts != 0 || b.underWay() != 0 {
			t.Errorf("after the rollback: %+v", books)
		}
		b.try(1, 1, 1, 2, nil)
		if books, _, _ := b.read(); books.Ghosts != 1 || books.Delivered != 0 {
			t.Errorf("after a delivery: %+v", books)
		}
	})

	t.Run("finds an event that overtakes an earlier one", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.publish(2, order, nil)
		b.publish(3, payment, nil)
		b.commit([]int64{1, 2, 3}, at(0))
		b.try(3, 1, 1, 2, nil)
		if books, _, _ := b.read(); books.OutOfOrder != 0 {
			t.Errorf("another aggregate: %+v", books)
		}
		b.try(2, 1, 1, 2, nil)
		if books, _, _ := b.read(); books.OutOfOrder != 1 {
			t.Errorf("the same aggregate: %+v", books)
		}
	})

	t.Run("finds two handlers at one event", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.commit([]int64{1}, at(0))
		b.begin(received(1, 1))
		b.begin(received(1, 1))
		if books, _, _ := b.read(); books.OutOfOrder != 1 {
			t.Errorf("books %+v", books)
		}
	})

	t.Run("counts an event that comes again, before and after the acknowledgement", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.try(1, 1, 1, 2, nil)
		b.try(1, 1, 3, 4, nil)
		b.commit([]int64{1}, at(5))
		b.try(1, 1, 6, 7, nil)
		if books, _, _ := b.read(); books.Repeated != 2 || books.Delivered != 1 || books.OutOfOrder != 0 {
			t.Errorf("books %+v", books)
		}
	})

	t.Run("follows an event through its retries to the end of the ladder", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.commit([]int64{1}, at(0))
		b.try(1, 1, 1, 2, broken)
		if books, _, _ := b.read(); books.Retrying != 1 || b.underWay() != 1 {
			t.Errorf("after the first failure: %+v", books)
		}
		b.try(1, 2, 1002, 1003, broken)
		books, latency, pastDue := b.read()
		if books.Retrying != 0 || books.Dead != 1 || books.Failed != 2 || books.LastDead.id != 1 || b.underWay() != 0 {
			t.Errorf("after the last: %+v", books)
		}
		if latency.N != 1 || pastDue.N != 1 {
			t.Errorf("%d first attempts, %d retries", latency.N, pastDue.N)
		}
		if a := b.shown[0]; a.outcome != failed || a.retryIn != time.Second || a.reason != "broken" {
			t.Errorf("first attempt %+v", a)
		}
	})

	t.Run("leaves those that wait for an earlier event out of the latency", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		for id := range int64(3) {
			b.publish(id+1, order, nil)
		}
		b.commit([]int64{1, 2}, at(0))
		b.try(1, 1, 1, 2, broken)
		b.try(1, 2, 1002, 1003, nil)
		b.try(2, 1, 1005, 1006, nil)
		b.commit([]int64{3}, at(1007))
		b.try(3, 1, 1008, 1009, nil)
		books, latency, _ := b.read()
		if books.Waited != 1 || latency.N != 2 || latency.Max != time.Millisecond {
			t.Errorf("books %+v, latency %+v", books, latency)
		}
		if got := b.shown[2]; got.id != 2 || !got.waited || got.latency != 1005*time.Millisecond {
			t.Errorf("the event that waited: %+v", got)
		}
	})

	t.Run("shows a cause before its consequence, whichever is done first", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.commit([]int64{1}, at(0))
		cause := received(1, 1)
		b.begin(cause)
		b.publish(2, payment, cause)
		b.commit([]int64{2}, at(2))
		consequence := received(2, 1)
		consequence.Metadata.CausationID = cause.PublicID.String()
		b.begin(consequence)
		b.end(consequence, at(3), 0, nil, at(4))
		b.end(cause, at(1), 0, nil, at(5))
		if got := b.ids(); !slices.Equal(got, []int64{1, 2}) {
			t.Errorf("shown in the order %v", got)
		}
		if books, _, _ := b.read(); books.ByHandlers != 1 || books.Unlinked != 0 || books.Delivered != 2 {
			t.Errorf("books %+v", books)
		}
		if !b.shown[1].caused || b.shown[1].shown.Before(b.shown[0].shown) {
			t.Errorf("consequence %+v after %+v", b.shown[1], b.shown[0])
		}
	})

	t.Run("finds a consequence that does not name its cause", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, payment, received(9, 1))
		b.commit([]int64{1}, at(0))
		b.begin(received(1, 1))
		if books, _, _ := b.read(); books.Unlinked != 1 {
			t.Errorf("books %+v", books)
		}
	})

	t.Run("never shows a time before an earlier one", func(t *testing.T) {
		t.Parallel()
		b := newBook()
		b.publish(1, order, nil)
		b.publish(2, payment, nil)
		b.commit([]int64{1, 2}, at(0))
		b.try(1, 1, 1, 9, nil)
		b.try(2, 1, 1, 8, nil)
		if b.shown[1].shown.Before(b.shown[0].shown) {
			t.Errorf("%s after %s", b.shown[1].shown, b.shown[0].shown)
		}
	})
}

func TestSummaryFindsFaults(t *testing.T) {
	t.Parallel()
	fine := Summary{books: books{Published: 3, Delivered: 2, Dead: 1, Repeated: 1}, Stored: stored{Published: 2, Dead: 1}}
	if err := fine.Err(); err != nil {
		t.Errorf("nothing is wrong, but: %v", err)
	}
	for name, spoil := range map[string]func(*Summary){
		"a rolled-back event delivered":    func(s *Summary) { s.Ghosts = 1 },
		"an event before an earlier one":   func(s *Summary) { s.OutOfOrder = 1 },
		"a consequence without its cause":  func(s *Summary) { s.Unlinked = 1 },
		"an event neither done nor dead":   func(s *Summary) { s.Published++ },
		"a pending row":                    func(s *Summary) { s.Stored.Pending = 1 },
		"a delivered event not so stored":  func(s *Summary) { s.Stored.Published-- },
		"a dead letter that was not shown": func(s *Summary) { s.Stored.Dead++ },
	} {
		spoilt := fine
		spoil(&spoilt)
		if spoilt.Err() == nil {
			t.Errorf("%s is not found", name)
		}
	}
}
