package poller

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

// aggregate is the unit of ordering.
type aggregate struct {
	Type string
	ID   uuid.UUID
}

// state is what a row's next_retry_at says, by the database's clock at the moment it was read.
type state int32

const (
	pending state = iota // never failed
	due                  // failed, and its time has come
	waiting              // failed, and its time has not come
	dead                 // a dead letter
)

// row is one unpublished event as it was read: not yet decoded, so that one bad row fails alone.
type row struct {
	id         int64
	aggregate  aggregate
	eventType  string
	payload    json.RawMessage // nil where the row cannot be handled now, or did not fit the page
	occurredAt pgtype.Timestamptz
	retryCount int32
	state      state
	blocked    bool     // pending, and an earlier event of the aggregate is in retry
	delivered  []string // subscribers that earlier attempts delivered to
	dead       []string // subscribers that failed for good
	lane       *lane    // that it was put into
}

// size is what the row counts for in the bound on bytes in flight.
func (r *row) size() int { return len(r.payload) + rowOverhead }

// rowOverhead is about what a row without payload takes in memory, in bytes.
const rowOverhead = 300

// errNotATime explains a row whose occurred_at no handler could be given.
var errNotATime = errors.New("occurred_at is not a time between the years 0 and 9999")

// decode makes the delivery that handlers see. An error means that no attempt can ever succeed.
// A payload that is not an envelope is delivered whole, with version 0.
func (r *row) decode(namespace uuid.UUID) (d dispatch.Delivery, isEnvelope bool, err error) {
	at := r.occurredAt.Time.UTC()
	if !r.occurredAt.Valid || r.occurredAt.InfinityModifier != pgtype.Finite || at.Year() < 0 || at.Year() > 9999 {
		return d, false, fmt.Errorf("event %d cannot be decoded: %w", r.id, errNotATime)
	}
	envelope, err := event.ParseEnvelope(r.payload)
	isEnvelope = err == nil
	if !isEnvelope {
		envelope = event.Envelope{Data: r.payload}
	}
	return dispatch.Delivery{
		Event: &event.Event{
			ID:            r.id,
			PublicID:      event.PublicID(namespace, r.id, at),
			AggregateType: r.aggregate.Type,
			AggregateID:   r.aggregate.ID,
			Type:          r.eventType,
			OccurredAt:    at,
			Version:       envelope.Version,
			Data:          envelope.Data,
			Metadata:      envelope.Metadata,
			Attempt:       int(r.retryCount) + 1,
		},
		RetryCount: int(r.retryCount),
		Delivered:  r.delivered,
		Dead:       r.dead,
	}, isEnvelope, nil
}

// outcome is what is to be settled for a row.
type outcome struct {
	row    *row
	result *dispatch.Outcome
}

// published is the result of most.
var published = &dispatch.Outcome{Kind: dispatch.Published}

// settlement is an outcome that has been committed.
type settlement struct {
	outcome
	// applied is false where the row was not as it was fetched: somebody else settled it.
	applied bool
	// retryAt is the committed next_retry_at of a retry.
	retryAt pgtype.Timestamptz
	// dueAt is about the same moment by this process's clock.
	dueAt time.Time
}
