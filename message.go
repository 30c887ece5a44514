package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/event"
)

// maxTypeBytes is the longest aggregate type and event type in bytes. Both are indexed, and a row of
// a btree index holds at most 2,704 bytes (PostgreSQL manual, "B-Tree Indexes"), id, time and headers included.
const maxTypeBytes = 2048

// Message is an event to be published.
type Message struct {
	// AggregateType and AggregateID name the aggregate, the unit of ordering: its
	// events are handled one at a time, in the order of their ids. Both are required; the type has at
	// most 2,048 bytes.
	AggregateType string
	AggregateID   uuid.UUID
	// EventType is what happened, for instance "PaymentSucceeded": what handlers
	// subscribe to. Required, at most 2,048 bytes.
	EventType string
	// Data is the event itself: any value that encoding/json can marshal, or JSON text as a
	// json.RawMessage. nil, also a nil json.RawMessage, is JSON null.
	//
	// A []byte is rejected, because encoding/json would make a base64 string of it where most
	// callers mean JSON text: use json.RawMessage for that, and a field or string for bytes.
	//
	// Numbers keep every digit: nothing decodes them on the way. Otherwise the data is stored as
	// jsonb does it: white space and the order of names are lost, and of equal names
	// the last wins. As always with encoding/json, invalid UTF-8 in a Go string becomes U+FFFD.
	//
	// Rejected because jsonb or the worker could not hold them: NUL and lone surrogates (\u0000,
	// \ud800), numbers of more than 131,072 digits before or 16,383 after the decimal
	// point, more than 1,000 levels of nesting, more than 256 MiB.
	Data any
	// Version is the version of the data's schema. Defaults to 1; a negative one is rejected.
	Version int
	// CorrelationID is the workflow or request that the event belongs to. Defaults to [event.CorrelationID]
	// of the context; "" there too: none.
	CorrelationID string
	// CausationID is the public id of the event that caused this one. Defaults to [event.CausationID]
	// of the context, which inside a handler is the handled event; "" there too: none.
	CausationID string
	// TraceParent is the W3C trace context, which the event's deliveries link to. Defaults to that of the span that Publish
	// starts, else that of the context's span, else [event.TraceParent] of the context.
	TraceParent string
	// OccurredAt is when it happened, in the years 1 to 9999, to the microsecond. Defaults to the
	// start of the transaction by the database's clock.
	OccurredAt time.Time
}

// ErrInvalidMessage is what errors.Is finds in the error for a message that was rejected before
// the database saw it. Details are in [InvalidMessageError].
var ErrInvalidMessage = errors.New("invalid message")

// InvalidMessageError lists everything that is wrong with a message, or with the messages
// of a batch. Nothing was sent to the database, so the transaction can go on.
type InvalidMessageError struct {
	Fields []FieldError
}

// FieldError is one thing that is wrong with a message.
type FieldError struct {
	// Index is the message's position in the batch, from 0; -1 outside a batch.
	Index int
	// Field is the name of the column (aggregate_type, aggregate_id, event_type, occurred_at) or of the
	// envelope's field (data, version, correlation_id, causation_id, traceparent).
	Field string
	// Err says what is wrong with it, and wraps what a marshaller returned.
	Err error
}

func (e *InvalidMessageError) Error() string {
	var text strings.Builder
	text.WriteString(ErrInvalidMessage.Error())
	separator := ": "
	for _, field := range e.Fields {
		text.WriteString(separator + field.Error())
		separator = "; "
	}
	return text.String()
}

// Is makes errors.Is(err, ErrInvalidMessage) true.
func (e *InvalidMessageError) Is(target error) bool { return target == ErrInvalidMessage }

// Unwrap gives errors.Is and errors.As the fields' errors.
func (e *InvalidMessageError) Unwrap() []error {
	errs := make([]error, len(e.Fields))
	for i, field := range e.Fields {
		errs[i] = field
	}
	return errs
}

func (e FieldError) Error() string {
	if e.Index < 0 {
		return e.Field + ": " + e.Err.Error()
	}
	return fmt.Sprintf("message %d: %s: %s", e.Index, e.Field, e.Err)
}

func (e FieldError) Unwrap() error { return e.Err }

// row is a message as the INSERT takes it. Everything is text and cast in SQL, because that
// is the one form which all drivers and all of pgx's execution modes send alike.
type row struct {
	aggregateType, aggregateID, eventType string
	envelope                              event.Envelope
	traced                                bool    // the message gave the trace context itself
	occurredAt                            *string // nil: the database's now()
}

// payload returns the envelope as JSON.
func (r *row) payload() string {
	return string(r.envelope.AppendJSON(make([]byte, 0, len(r.envelope.Data)+256)))
}

// row validates the message and takes what it leaves open from the context. A message with problems has no row.
func (m Message) row(ctx context.Context, index int) (row, []FieldError) {
	var problems []FieldError
	check := func(field string, err error) {
		if err != nil {
			problems = append(problems, FieldError{Index: index, Field: field, Err: err})
		}
	}
	envelope := event.Envelope{Version: m.Version, Metadata: event.Metadata{
		CorrelationID: m.CorrelationID,
		CausationID:   m.CausationID,
		TraceParent:   m.TraceParent,
	}}
	if envelope.Version == 0 {
		envelope.Version = 1
	}
	if envelope.Metadata.CorrelationID == "" {
		envelope.Metadata.CorrelationID = event.CorrelationID(ctx)
	}
	if envelope.Metadata.CausationID == "" {
		envelope.Metadata.CausationID = event.CausationID(ctx)
	}
	if envelope.Metadata.TraceParent == "" {
		envelope.Metadata.TraceParent, envelope.Metadata.TraceState = event.TraceParent(ctx), event.TraceState(ctx)
	}

	check("aggregate_type", checkType(m.AggregateType))
	if m.AggregateID == uuid.Nil {
		check("aggregate_id", errors.New("is the nil UUID"))
	}
	check("event_type", checkType(m.EventType))
	data, err := marshal(m.Data)
	check("data", err)
	envelope.Data = data
	if envelope.Version < 1 {
		check("version", fmt.Errorf("%d is less than 1", envelope.Version))
	}
	check("correlation_id", checkText(envelope.Metadata.CorrelationID))
	check("causation_id", checkText(envelope.Metadata.CausationID))
	check("traceparent", checkText(envelope.Metadata.TraceParent))
	occurredAt, err := timestamp(m.OccurredAt)
	check("occurred_at", err)
	if problems != nil {
		return row{}, problems
	}
	return row{
		aggregateType: m.AggregateType,
		aggregateID:   m.AggregateID.String(),
		eventType:     m.EventType,
		envelope:      envelope,
		traced:        m.TraceParent != "",
		occurredAt:    occurredAt,
	}, nil
}

func checkType(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	if len(s) > maxTypeBytes {
		return fmt.Errorf("has %d bytes, more than %d", len(s), maxTypeBytes)
	}
	return checkText(s)
}

// checkText reports what a text column or jsonb string cannot hold.
func checkText(s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return errors.New("contains NUL")
	}
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	return nil
}

// timestamp returns t as text for the database, nil for the zero time.
func timestamp(t time.Time) (*string, error) {
	if t.IsZero() {
		return nil, nil
	}
	t = t.UTC()
	if year := t.Year(); year < 1 || year > 9999 {
		return nil, fmt.Errorf("is in the year %d, outside 1 to 9999", year)
	}
	// The format cuts off nanoseconds, which the database would round.
	text := t.Format("2006-01-02T15:04:05.000000Z")
	return &text, nil
}

// marshal returns data as JSON text that jsonb takes.
func marshal(data any) (_ json.RawMessage, err error) {
	var text json.RawMessage
	switch data := data.(type) {
	case json.RawMessage:
		if data == nil {
			data = json.RawMessage("null")
		}
		// encoding/json would compact it, that is copy it without need.
		text, err = data, checkSyntax(data)
	case []byte:
		return nil, errors.New("is a []byte, which is ambiguous: use json.RawMessage for JSON text, a string or a field of a struct for bytes")
	default:
		text, err = encode(data)
	}
	if err != nil {
		return nil, err
	}
	return text, checkJSONB(text)
}

// checkSyntax reports whether text is one JSON value.
func checkSyntax(text []byte) error {
	if json.Valid(text) {
		return nil
	}
	var value json.RawMessage
	return fmt.Errorf("is not JSON: %w", json.Unmarshal(text, &value))
}

func encode(data any) (_ json.RawMessage, err error) {
	// A MarshalJSON of the caller's may panic, for instance on a nil pointer. The message is bad then, not
	// the service; encoding/json passes the panic on.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("marshalling it panicked: %v", r)
		}
	}()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // handlers are no browsers; keep URLs readable in the table
	if err := encoder.Encode(data); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}
