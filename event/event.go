package event

import (
	"crypto/sha1"
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Event is one row of events.outbox as a handler sees it.
type Event struct {
	// ID is events.outbox.id. Ids rise in the order in which they were drawn; they are
	// unique within one database only. Deduplicate on PublicID instead.
	ID int64
	// PublicID identifies the event everywhere and for ever: see [PublicID].
	PublicID uuid.UUID
	// AggregateType and AggregateID name the aggregate: the unit of ordering.
	AggregateType string
	AggregateID   uuid.UUID
	// Type is the event type, for instance "PaymentSucceeded".
	Type string
	// OccurredAt is the start of the publishing transaction by the database's clock, in UTC,
	// unless the publisher gave another time.
	OccurredAt time.Time
	// Version is the envelope's version of the data's schema; 0 for a payload that is not an envelope.
	Version int
	// Data is the envelope's data, byte for byte as the database returns it; the
	// whole payload for a payload that is not an envelope.
	Data json.RawMessage
	// Metadata is the envelope's metadata; empty where there is none.
	Metadata Metadata
	// Attempt is 1 for the first delivery, 2 for the first retry, and so on
	// (retry_count + 1).
	Attempt int
}

// PublicID returns the public id of an event: the UUIDv5 of "id:µs" in the outbox's
// namespace, where µs is occurred_at in microseconds since 1970. The bare id is not
// enough: two databases both have a row 1, and a promoted standby can reissue ids
// that its predecessor had given out.
//
// The namespace is drawn at random when the schema is made (events.outbox_meta.namespace).
func PublicID(namespace uuid.UUID, id int64, occurredAt time.Time) uuid.UUID {
	name := make([]byte, 0, len(namespace)+41) // on the stack
	name = append(name, namespace[:]...)
	name = strconv.AppendInt(name, id, 10)
	name = append(name, ':')
	name = strconv.AppendInt(name, occurredAt.UnixMicro(), 10)
	// As uuid.NewSHA1 does (RFC 9562, section 5.5), but without its four allocations: every delivery needs an id.
	sum := sha1.Sum(name)
	id5 := uuid.UUID(sum[:len(namespace)])
	id5[6] = id5[6]&0x0f | 5<<4
	id5[8] = id5[8]&0x3f | 0x80
	return id5
}
