package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// Filter says which events are meant: those that have all of what is set.
type Filter struct {
	State         State         // zero: [Unpublished]
	AggregateType string        // empty: any
	AggregateID   uuid.NullUUID // of AggregateType, or of any type
	EventType     string        // empty: any
	ErrorContains string        // a part of the last error, in either case; empty: any
	OlderThan     time.Duration // since OccurredAt; 0: any
	NewerThan     time.Duration // since OccurredAt; 0: any
}

// Validate returns an error that says what is wrong with a filter.
func (f Filter) Validate() error {
	var errs []error
	if f.State != "" && !slices.Contains(States, f.State) {
		errs = append(errs, fmt.Errorf("unknown state %q", f.State))
	}
	if f.OlderThan < 0 || f.NewerThan < 0 {
		errs = append(errs, errors.New("an age is negative"))
	}
	if f.OlderThan > 0 && f.NewerThan > 0 && f.OlderThan >= f.NewerThan {
		errs = append(errs, fmt.Errorf("nothing is both older than %s and newer than %s", f.OlderThan, f.NewerThan))
	}
	for _, text := range []struct{ name, value string }{
		{"aggregate type", f.AggregateType}, {"event type", f.EventType}, {"text of the error", f.ErrorContains},
	} {
		if !utf8.ValidString(text.value) || strings.ContainsRune(text.value, 0) {
			errs = append(errs, fmt.Errorf("the %s %q is not UTF-8", text.name, text.value))
		}
	}
	return errors.Join(errs...)
}

// span is a range of ids: after < id ≤ upTo.
type span struct{ after, upTo int64 }

var everywhere = span{math.MinInt64, math.MaxInt64}

func (f Filter) params(s span, limit int) eventsdb.MatchOldestParams {
	state := f.State
	if state == "" {
		state = Unpublished
	}
	p := eventsdb.MatchOldestParams{
		After: s.after, UpTo: s.upTo, State: string(state), AggregateID: f.AggregateID, PageSize: int64(limit),
		OlderThanUs: microseconds(f.OlderThan), NewerThanUs: microseconds(f.NewerThan),
	}
	for _, text := range []struct {
		value string
		to    **string
	}{{f.AggregateType, &p.AggregateType}, {f.EventType, &p.EventType}, {f.ErrorContains, &p.ErrorContains}} {
		if text.value != "" {
			*text.to = &text.value
		}
	}
	return p
}

func microseconds(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	us := d.Microseconds()
	return &us
}

// Page is a part of a list.
type Page struct {
	Limit  int    // how many events; required
	Newest bool   // the newest first, instead of the oldest
	After  *int64 // go on after the event with this id, in the order of the list; nil: from its beginning
}

// List returns a page of the events that match a filter, in the order of their ids, without payloads. The next page
// begins after the last id of this one; there is none after a page with fewer events than asked for.
func List(ctx context.Context, db DB, f Filter, p Page) ([]Event, error) {
	err := f.Validate()
	if p.Limit < 1 {
		err = errors.Join(err, fmt.Errorf("a page of %d events", p.Limit))
	}
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	q := queries(db)
	ids, err := match(ctx, q, f, p)
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	events, err := load(ctx, q, ids)
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	if p.Newest {
		slices.Reverse(events)
	}
	return events, nil
}

func match(ctx context.Context, q *eventsdb.Queries, f Filter, p Page) ([]int64, error) {
	s := everywhere
	switch {
	case p.After == nil:
	case p.Newest && *p.After == math.MinInt64: // nothing is below it
		return nil, nil
	case p.Newest:
		s.upTo = *p.After - 1
	default:
		s.after = *p.After
	}
	if p.Newest {
		return q.MatchNewest(ctx, eventsdb.MatchNewestParams(f.params(s, p.Limit)))
	}
	return q.MatchOldest(ctx, f.params(s, p.Limit))
}

// IDs returns the ids of all events that match a filter, in rising order: what [RedriveAny] or [DiscardAny] then act on, and nothing that
// has come to match since.
func IDs(ctx context.Context, db DB, f Filter) ([]int64, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("find events: %w", err)
	}
	ids, err := queries(db).MatchOldest(ctx, f.params(everywhere, math.MaxInt))
	if err != nil {
		return nil, fmt.Errorf("find events: %w", err)
	}
	return ids, nil
}
