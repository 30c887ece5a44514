package poller

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/dispatch"
)

func TestSortOut(t *testing.T) {
	t.Parallel()
	is := func(id int64, retryCount int32, o *dispatch.Outcome) outcome {
		return outcome{row: &row{id: id, retryCount: retryCount}, result: o}
	}
	t.Run("each kind goes to its statement", func(t *testing.T) {
		t.Parallel()
		m := sortOut([]outcome{
			is(1, 0, &dispatch.Outcome{Kind: dispatch.Published}),
			is(2, 3, &dispatch.Outcome{Kind: dispatch.Retry, Error: "no", Delay: time.Minute, Delivered: []string{"a"}, Dead: []string{"b", "c"}}),
			is(3, 9, &dispatch.Outcome{Kind: dispatch.Dead, Error: "never", Delivered: []string{"a"}, Dead: []string{"d"}}),
			is(4, 1, &dispatch.Outcome{Kind: dispatch.Published}),
		})
		if !slices.Equal(m.published, []int64{1, 4}) {
			t.Errorf("published %v", m.published)
		}
		if r := m.retries; !slices.Equal(r.Ids, []int64{2}) || !slices.Equal(r.RetryCounts, []int32{3}) ||
			!slices.Equal(r.LastErrors, []string{"no"}) || !slices.Equal(r.DelaysUs, []int64{60_000_000}) {
			t.Errorf("retries %+v", r)
		}
		if d := m.dead; !slices.Equal(d.Ids, []int64{3}) || !slices.Equal(d.RetryCounts, []int32{9}) || !slices.Equal(d.LastErrors, []string{"never"}) {
			t.Errorf("dead %+v", d)
		}
		if d := m.deliveries; !slices.Equal(d.Ids, []int64{2, 2, 2, 3, 3}) || !slices.Equal(d.Subscribers, []string{"a", "b", "c", "a", "d"}) ||
			!slices.Equal(d.Dead, []bool{false, true, true, false, true}) {
			t.Errorf("deliveries %+v", d)
		}
	})
	t.Run("delays are brought into what now() can be added to", func(t *testing.T) {
		t.Parallel()
		for delay, want := range map[time.Duration]int64{
			-time.Second: 0, 0: 0, time.Microsecond: 1, maxDelay: maxDelay.Microseconds(), math.MaxInt64: maxDelay.Microseconds(),
		} {
			m := sortOut([]outcome{is(1, 0, &dispatch.Outcome{Kind: dispatch.Retry, Delay: delay})})
			if got := m.retries.DelaysUs[0]; got != want {
				t.Errorf("%s becomes %d µs, want %d", delay, got, want)
			}
		}
	})
}

// TestSortOutKeepsEveryOutcome checks that nothing is lost or doubled on the way through the statements, and that the
// arrays of a statement are equally long.
func TestSortOutKeepsEveryOutcome(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(rapid.SampledFrom([]dispatch.Kind{dispatch.Published, dispatch.Retry, dispatch.Dead}), 0, 20).Draw(t, "kinds")
		var batch []outcome
		deliveries := 0
		for i, k := range kinds {
			o := &dispatch.Outcome{Kind: k, Delay: time.Duration(i) * time.Second}
			if k != dispatch.Published {
				o.Delivered, o.Dead = make([]string, rapid.IntRange(0, 2).Draw(t, "delivered")), make([]string, rapid.IntRange(0, 2).Draw(t, "dead"))
			}
			deliveries += len(o.Delivered) + len(o.Dead)
			batch = append(batch, outcome{row: &row{id: int64(i + 1), retryCount: int32(i)}, result: o})
		}
		m := sortOut(batch)
		ids := slices.Concat(m.published, m.retries.Ids, m.dead.Ids)
		for _, list := range [][]int64{m.published, m.retries.Ids, m.dead.Ids, m.deliveries.Ids} {
			if !slices.IsSorted(list) {
				t.Errorf("ids of a statement are not in order: %v", list)
			}
		}
		slices.Sort(ids)
		if len(ids) != len(batch) || len(slices.Compact(ids)) != len(batch) {
			t.Errorf("%d outcomes became %d", len(batch), len(ids))
		}
		r, d := m.retries, m.dead
		if n := len(r.Ids); n != len(r.RetryCounts) || n != len(r.LastErrors) || n != len(r.DelaysUs) {
			t.Errorf("retries %+v", r)
		}
		if n := len(d.Ids); n != len(d.RetryCounts) || n != len(d.LastErrors) {
			t.Errorf("dead %+v", d)
		}
		if n := len(m.deliveries.Ids); n != deliveries || n != len(m.deliveries.Subscribers) || n != len(m.deliveries.Dead) {
			t.Errorf("deliveries %+v, want %d", m.deliveries, deliveries)
		}

		// What the retry statement returns says which retries were applied.
		var returned []eventsdb.MarkRetryBatchRow
		applied := map[int64]bool{}
		for _, id := range r.Ids {
			if rapid.Bool().Draw(t, "applied") {
				returned = append(returned, eventsdb.MarkRetryBatchRow{ID: id, NextRetryAt: timestamp(id)})
				applied[id] = true
			}
		}
		for i, s := range m.settlements(returned, noon) {
			isRetry := kinds[i] == dispatch.Retry
			if s.row.id != int64(i+1) || s.applied != (!isRetry || applied[s.row.id]) {
				t.Errorf("settlement %+v", s)
			}
			if s.retryAt.Valid != applied[s.row.id] || (s.retryAt.Valid && s.retryAt != timestamp(s.row.id)) {
				t.Errorf("event %d: next retry %v", s.row.id, s.retryAt)
			}
			if s.dueAt.IsZero() == isRetry || (isRetry && !s.dueAt.Equal(noon.Add(time.Duration(i)*time.Second))) {
				t.Errorf("event %d: due at %s", s.row.id, s.dueAt)
			}
		}
	})
}
