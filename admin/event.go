package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/event"
)

// DB is a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type DB interface {
	eventsdb.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// State is where an event stands.
type State string

// The states of an event, and two that stand for several in a [Filter].
const (
	Pending   State = "pending"   // not published, and never failed
	Retrying  State = "retrying"  // failed, and tried again at NextRetryAt
	Dead      State = "dead"      // failed for good
	Published State = "published" // every subscriber has it

	Unpublished State = "unpublished" // pending, retrying or dead
	All         State = "all"
)

// States are all states that a [Filter] can have.
var States = []State{Unpublished, Pending, Retrying, Dead, Published, All}

// Event is a row of the outbox.
type Event struct {
	ID            int64           `json:"id"`
	State         State           `json:"state"`
	AggregateType string          `json:"aggregate_type"`
	AggregateID   uuid.UUID       `json:"aggregate_id"`
	EventType     string          `json:"event_type"`
	Payload       json.RawMessage `json:"payload,omitempty"` // the envelope as stored; nil where it was not asked for
	OccurredAt    time.Time       `json:"occurred_at"`       // zero where the row says infinity
	PublishedAt   *time.Time      `json:"published_at"`
	RetryCount    int             `json:"retry_count"`
	LastError     string          `json:"last_error"`
	NextRetryAt   *time.Time      `json:"next_retry_at"` // nil unless it is in retry
	// Deliveries are the subscribers that are through with the event, where it failed in part; with the payload only.
	Deliveries []Delivery `json:"deliveries,omitempty"`
}

// Delivery is what became of an event at one subscriber, of an event that failed in part.
type Delivery struct {
	Subscriber string    `json:"subscriber"`
	Dead       bool      `json:"dead"` // failed for good; else delivered
	At         time.Time `json:"at"`
}

// Detail is all that the outbox knows of an event.
type Detail struct {
	Event
	// PublicID is the id that handlers and receivers know the event by.
	PublicID uuid.UUID `json:"public_id"`
	// BlockedBy is the earlier event of the aggregate that has to be published, or die, before this one is tried; 0: none.
	BlockedBy int64 `json:"blocked_by"`
	// LaterWaiting and LaterPublished count the later events of the aggregate that are pending or in retry, and that were published, up to
	// [CountAtMost]. While this event is in retry, the first wait for it.
	LaterWaiting   int64 `json:"later_waiting"`
	LaterPublished int64 `json:"later_published"`
}

// CountAtMost is where counts stop.
const CountAtMost = 100_000

// ErrNotFound is returned for an id that no event has.
var ErrNotFound = errors.New("no such event")

// Show returns all that the outbox knows of an event: [ErrNotFound] if there is none with this id.
func Show(ctx context.Context, db DB, id int64) (*Detail, error) {
	var d *Detail
	err := within(ctx, db, func(_ pgx.Tx, q *eventsdb.Queries) (err error) {
		d, err = show(ctx, q, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("show event %d: %w", id, err)
	}
	return d, nil
}

func show(ctx context.Context, q *eventsdb.Queries, id int64) (*Detail, error) {
	facts, err := q.SchemaFacts(ctx)
	if err != nil {
		return nil, err
	}
	events, err := loadWhole(ctx, q, []int64{id})
	if err != nil {
		return nil, err
	}
	if len(events) == 0 {
		return nil, ErrNotFound
	}
	d := &Detail{Event: events[0]}
	d.PublicID = event.PublicID(facts.Namespace, d.ID, d.OccurredAt)
	if err := q.TuneLookups(ctx); err != nil {
		return nil, err
	}
	around, err := q.Surroundings(ctx, eventsdb.SurroundingsParams{ID: id, Bound: CountAtMost})
	if err != nil {
		return nil, err
	}
	d.BlockedBy, d.LaterWaiting, d.LaterPublished = around.BlockedBy, around.LaterWaiting, around.LaterPublished
	return d, nil
}

// load returns events without their payloads, in id order; those that are gone are left out.
func load(ctx context.Context, q *eventsdb.Queries, ids []int64) ([]Event, error) {
	return read(ctx, q, ids, false)
}

// loadWhole is load with payloads and deliveries.
func loadWhole(ctx context.Context, q *eventsdb.Queries, ids []int64) ([]Event, error) {
	events, err := read(ctx, q, ids, true)
	if err != nil {
		return nil, err
	}
	deliveries, err := q.DeliveriesOf(ctx, ids)
	if err != nil {
		return nil, err
	}
	of := make(map[int64][]Delivery)
	for _, d := range deliveries {
		of[d.OutboxID] = append(of[d.OutboxID], Delivery{Subscriber: d.Subscriber, Dead: d.Dead, At: finite(d.SettledAt)})
	}
	for i := range events {
		events[i].Deliveries = of[events[i].ID]
	}
	return events, nil
}

func read(ctx context.Context, q *eventsdb.Queries, ids []int64, payloads bool) ([]Event, error) {
	rows, err := q.EventsByID(ctx, eventsdb.EventsByIDParams{Ids: ids, Payloads: payloads})
	if err != nil {
		return nil, err
	}
	events := make([]Event, len(rows))
	for i, r := range rows {
		events[i] = Event{
			ID: r.ID, State: stateOf(r.PublishedAt, r.NextRetryAt), AggregateType: r.AggregateType, AggregateID: r.AggregateID,
			EventType: r.EventType, Payload: r.Payload, OccurredAt: finite(r.OccurredAt), PublishedAt: finiteOrNil(r.PublishedAt),
			RetryCount: int(r.RetryCount),
		}
		if events[i].State == Retrying {
			events[i].NextRetryAt = finiteOrNil(r.NextRetryAt)
		}
		if r.LastError != nil {
			events[i].LastError = *r.LastError
		}
	}
	return events, nil
}

func stateOf(publishedAt, nextRetryAt pgtype.Timestamptz) State {
	switch {
	case publishedAt.Valid:
		return Published
	case !nextRetryAt.Valid:
		return Pending
	case nextRetryAt.InfinityModifier == pgtype.Infinity:
		return Dead
	}
	return Retrying
}

func finite(t pgtype.Timestamptz) time.Time {
	if t.InfinityModifier != pgtype.Finite {
		return time.Time{}
	}
	return t.Time.UTC()
}

func finiteOrNil(t pgtype.Timestamptz) *time.Time {
	if !t.Valid || t.InfinityModifier != pgtype.Finite {
		return nil
	}
	at := t.Time.UTC()
	return &at
}
