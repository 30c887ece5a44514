package poller

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/dispatch"
)

func TestRetries(t *testing.T) {
	t.Parallel()
	at := func(us int64) pgtype.Timestamptz { return timestamp(us) }
	t.Run("a fresh owner looks at once, from the very start", func(t *testing.T) {
		t.Parallel()
		var r retries
		if r.due(noon) {
			t.Error("due before it has begun")
		}
		r.found(noon, dueRows{rows: []dueRow{{id: 5, at: at(5)}}}, false)
		r.fromStart(noon)
		if !r.due(noon) || r.afterTime != (pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}) || r.afterID != 0 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("after a look", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct {
			name        string
			full, waits bool
			next        time.Time
		}{
			{"a full page means to look at once", true, false, noon},
			{"a full page counts more than the next retry", true, true, noon},
			{"the next retry sets the timer", false, true, noon.Add(time.Hour)},
			{"without one there is no timer", false, false, time.Time{}},
		} {
			r := retries{next: noon}
			r.found(noon, dueRows{nextIn: time.Hour, waits: tc.waits}, tc.full)
			if !r.next.Equal(tc.next) {
				t.Errorf("%s: timer %s", tc.name, r.next)
			}
			if r.due(noon) != tc.full {
				t.Errorf("%s: due %t", tc.name, r.due(noon))
			}
		}
	})
	t.Run("it is due from its very time on", func(t *testing.T) {
		t.Parallel()
		r := retries{next: noon}
		if r.due(noon.Add(-1)) || !r.due(noon) || !r.due(noon.Add(1)) {
			t.Error("not due exactly from its time on")
		}
	})
	t.Run("the earliest expectation is the timer", func(t *testing.T) {
		t.Parallel()
		var r retries
		for _, in := range []time.Duration{3, 1, 2} {
			r.expect(noon.Add(in*time.Minute), at(1))
		}
		if !r.next.Equal(noon.Add(time.Minute)) {
			t.Errorf("timer %s", r.next)
		}
	})
	t.Run("an expectation at or before the position takes it back", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct {
			name           string
			expected       pgtype.Timestamptz
			afterUS, after int64
		}{
			{"before", at(90), 89, 0},
			{"at", at(100), 99, 0},
			{"after", at(101), 100, 7},
			{"unknown", pgtype.Timestamptz{}, 100, 7},
			{"never", at(deadLetter), 100, 7},
		} {
			var r retries
			r.found(noon, dueRows{rows: []dueRow{{id: 3, at: at(90)}, {id: 7, at: at(100)}}}, false)
			r.expect(noon, tc.expected)
			if r.afterTime.Time.UnixMicro() != tc.afterUS || r.afterID != tc.after {
				t.Errorf("%s: position %d, %d", tc.name, r.afterTime.Time.UnixMicro(), r.afterID)
			}
		}
	})
	t.Run("no event is in retry", func(t *testing.T) {
		t.Parallel()
		none := func(change func(r *retries)) bool {
			var r retries
			r.fromStart(noon)
			r.found(noon, dueRows{}, false)
			change(&r)
			return r.none()
		}
		row := dueRows{rows: []dueRow{{id: 1, at: at(1)}}}
		for name, tc := range map[string]struct {
			want   bool
			change func(r *retries)
		}{
			"after a look from the start that found nothing": {true, func(*retries) {}},
			"not before":                                {false, func(r *retries) { r.fromStart(noon) }},
			"not once one is settled":                   {false, func(r *retries) { r.expect(noon, at(1)) }},
			"not while one waits":                       {false, func(r *retries) { r.found(noon, dueRows{nextIn: time.Hour, waits: true}, false) }},
			"not while there are dead letters":          {false, func(r *retries) { r.found(noon, dueRows{dead: true}, false) }},
			"not once one was due":                      {false, func(r *retries) { r.found(noon, row, false) }},
			"nor after a look at those behind it alone": {false, func(r *retries) { r.found(noon, row, false); r.found(noon, dueRows{}, false) }},
			"but after another from the start": {true, func(r *retries) {
				r.found(noon, row, false)
				r.confirm(noon)
				r.found(noon, dueRows{}, false)
			}},
			"which has to wait for one that is expected": {false, func(r *retries) {
				r.found(noon, row, false)
				r.expect(noon.Add(time.Hour), at(2))
				r.confirm(noon)
				r.found(noon, dueRows{}, false)
			}},
		} {
			if got := none(tc.change); got != tc.want {
				t.Errorf("%s: %t", name, got)
			}
		}
	})
	t.Run("a look to confirm comes now, and goes back only where no retry waits", func(t *testing.T) {
		t.Parallel()
		r := retries{next: noon.Add(time.Hour), afterTime: at(3), afterID: 7, some: true}
		if r.confirm(noon); !r.next.Equal(noon) || r.afterTime != at(3) || r.afterID != 7 {
			t.Errorf("one waits: %+v", r)
		}
		r.next = time.Time{}
		if r.confirm(noon); !r.next.Equal(noon) || r.afterTime.InfinityModifier != pgtype.NegativeInfinity {
			t.Errorf("none waits: %+v", r)
		}
		r = retries{}
		if r.confirm(noon); !r.next.IsZero() {
			t.Errorf("there is none: %+v", r)
		}
	})
	t.Run("a position before all times stays", func(t *testing.T) {
		t.Parallel()
		var r retries
		r.fromStart(noon)
		r.expect(noon, at(5))
		if r.afterTime.InfinityModifier != pgtype.NegativeInfinity {
			t.Errorf("%+v", r)
		}
	})
}

// TestRetriesFindEveryDueRow fails events, lets time pass, and looks when the timer says so: every retry is found
// each time it has become due. One that is being handled may be found again, when the position goes back.
func TestRetriesFindEveryDueRow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		db := &table{now: 1}
		tx := db.begin(tableKey(1))
		for range 6 {
			db.draw(tx, 1)
		}
		db.commit(tx)
		var r retries
		clock := func() time.Time { return noon.Add(time.Duration(db.now) * time.Microsecond) }
		r.fromStart(clock())
		failed := map[int64]bool{} // and not found since

		fail := func() {
			rec := db.records[below(6).Draw(t, "event")]
			if failed[rec.id] {
				return // it would have to be handled first
			}
			o := outcome{row: db.read(rec), result: &dispatch.Outcome{Kind: dispatch.Retry, Delay: time.Duration(below(8).Draw(t, "delay")) * time.Microsecond}}
			s := db.settle([]outcome{o})[0]
			r.expect(clock().Add(o.result.Delay), s.retryAt)
			failed[rec.id] = true
		}
		look := func() {
			for r.due(clock()) {
				limit := 1 + below(3).Draw(t, "limit")
				d, _ := db.fetchDue(context.Background(), &r, limit)
				for _, found := range d.rows {
					delete(failed, found.id)
				}
				r.found(clock(), d, len(d.rows) == limit)
			}
		}
		for range 60 {
			switch below(4).Draw(t, "step") {
			case 0:
				fail()
			case 1:
				db.now += int64(below(4).Draw(t, "µs"))
			default:
				look()
			}
		}
		for range 100 {
			look()
			db.now++
		}
		if len(failed) > 0 {
			t.Fatalf("never found: %v", slices.Collect(maps.Keys(failed)))
		}
	})
}
