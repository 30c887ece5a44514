package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// fact is an event as the test made it.
type fact struct {
	id            int64
	state         admin.State
	aggregateType string
	aggregate     byte
	eventType     string
	lastError     string
	age           time.Duration
}

// matches is what a filter means, in other words.
func matches(f admin.Filter, e fact) bool {
	switch f.State {
	case admin.All:
	case "", admin.Unpublished:
		if e.state == admin.Published {
			return false
		}
	default:
		if e.state != f.State {
			return false
		}
	}
	return (f.AggregateType == "" || f.AggregateType == e.aggregateType) &&
		(!f.AggregateID.Valid || f.AggregateID.UUID == uuid.UUID{e.aggregate}) &&
		(f.EventType == "" || f.EventType == e.eventType) &&
		(f.ErrorContains == "" || strings.Contains(strings.ToLower(e.lastError), strings.ToLower(f.ErrorContains))) &&
		(f.OlderThan == 0 || e.age > f.OlderThan) &&
		(f.NewerThan == 0 || e.age <= f.NewerThan)
}

func TestList(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	sets := map[admin.State]string{
		admin.Pending: "retry_count = 0", admin.Retrying: "next_retry_at = now()", admin.Dead: "next_retry_at = 'infinity'", admin.Published: "published_at = now()",
	}
	states := []admin.State{admin.Pending, admin.Retrying, admin.Dead, admin.Published}
	var facts []fact
	for i := range 160 {
		e := fact{
			state: states[i%4], aggregateType: []string{"order", "invoice"}[i/4%2], aggregate: byte(i / 8 % 5), eventType: []string{"Placed", "Paid"}[i/3%2],
			lastError: []string{"", "100% Timeout", "connection_refused"}[i/5%3], age: time.Duration(i%7) * time.Hour,
		}
		e.age += time.Minute // so that a limit is not met to the second
		e.id = value[int64](t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
			VALUES ($1, $2, $3, '{}', now() - $4::bigint * interval '1 microsecond') RETURNING id`,
			e.aggregateType, uuid.UUID{e.aggregate}, e.eventType, e.age.Microseconds())
		exec(t, db, fmt.Sprintf("UPDATE events.outbox SET %s, last_error = NULLIF($2, '') WHERE id = $1", sets[e.state]), e.id, e.lastError)
		facts = append(facts, e)
	}

	rapid.Check(t, func(rt *rapid.T) {
		f := admin.Filter{
			State:         rapid.SampledFrom(append([]admin.State{""}, admin.States...)).Draw(rt, "state"),
			AggregateType: rapid.SampledFrom([]string{"", "", "order", "invoice", "none"}).Draw(rt, "aggregate type"),
			EventType:     rapid.SampledFrom([]string{"", "", "Placed", "Paid", "none"}).Draw(rt, "event type"),
			ErrorContains: rapid.SampledFrom([]string{"", "", "TIMEOUT", "%", "_", "n_r"}).Draw(rt, "error"),
			OlderThan:     rapid.SampledFrom([]time.Duration{0, 0, 2 * time.Hour}).Draw(rt, "older"),
			NewerThan:     rapid.SampledFrom([]time.Duration{0, 0, 5 * time.Hour}).Draw(rt, "newer"),
		}
		if rapid.Bool().Draw(rt, "of an aggregate") {
			f.AggregateID = uuid.NullUUID{UUID: uuid.UUID{rapid.ByteRange(0, 5).Draw(rt, "aggregate")}, Valid: true}
		}
		var want []int64
		for _, e := range facts {
			if matches(f, e) {
				want = append(want, e.id)
			}
		}
		if ids, err := admin.IDs(t.Context(), db.Pool, f); err != nil || !slices.Equal(ids, want) {
			rt.Fatalf("found %v (%v), want %v", ids, err, want)
		}
		p := admin.Page{Limit: rapid.IntRange(1, 60).Draw(rt, "limit"), Newest: rapid.Bool().Draw(rt, "newest")}
		if p.Newest {
			slices.Reverse(want)
		}
		var got []int64
		for {
			events, err := admin.List(t.Context(), db.Pool, f, p)
			if err != nil {
				rt.Fatal(err)
			}
			for _, e := range events {
				got = append(got, e.ID)
				if i := slices.IndexFunc(facts, func(f fact) bool { return f.id == e.ID }); facts[i].state != e.State {
					rt.Fatalf("event %d is %s, want %s", e.ID, e.State, facts[i].state)
				}
			}
			if len(events) < p.Limit {
				break
			}
			p.After = &events[len(events)-1].ID
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("pages have %v, want %v", got, want)
		}
	})

	t.Run("a page can begin at any id", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		exec(t, db, `INSERT INTO events.outbox (id, aggregate_type, aggregate_id, event_type, payload)
			SELECT i, 'order', gen_random_uuid(), 'Placed', '{}' FROM unnest(ARRAY[-9223372036854775808, -1, 0, 1, 9223372036854775807]) i`)
		for _, newest := range []bool{false, true} {
			var got []int64
			for p := (admin.Page{Limit: 1, Newest: newest}); ; p.After = &got[len(got)-1] {
				events, err := admin.List(t.Context(), db.Pool, admin.Filter{}, p)
				if err != nil || len(got) > 5 {
					t.Fatal(err, got)
				}
				if len(events) == 0 {
					break
				}
				got = append(got, events[0].ID)
			}
			if len(got) != 4 && len(got) != 5 || slices.IsSorted(got) == newest {
				t.Errorf("newest %v: %v", newest, got)
			}
		}
	})

	t.Run("a filter that means nothing is an error", func(t *testing.T) {
		t.Parallel()
		for name, try := range map[string]func() error{
			"state": func() error {
				_, err := admin.List(t.Context(), db.Pool, admin.Filter{State: "lost"}, admin.Page{Limit: 1})
				return err
			},
			"age":           func() error { return admin.Filter{OlderThan: -1}.Validate() },
			"no time":       func() error { return admin.Filter{OlderThan: 2, NewerThan: 2}.Validate() },
			"another code":  func() error { return admin.Filter{EventType: "\xff"}.Validate() },
			"ids of no age": func() error { _, err := admin.IDs(t.Context(), db.Pool, admin.Filter{NewerThan: -1}); return err },
			"page":          func() error { _, err := admin.List(t.Context(), db.Pool, admin.Filter{}, admin.Page{}); return err },
		} {
			if try() == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
