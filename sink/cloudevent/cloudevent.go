// Package cloudevent renders an event as CloudEvents 1.0 structured JSON, the one
// format in which the sinks hand events to the outside.
//
// Attributes, always in this order:
//
//	specversion      "1.0"
//	id               the public id: equal for every delivery of one event
//	source           where the event comes from, see [DefaultSource]
//	type             the event type
//	subject          the aggregate id
//	time             occurred_at: RFC 3339, UTC, microseconds
//	datacontenttype  "application/json"
//	outboxid         extension: the row's id, a string because JavaScript rounds large numbers
//	aggregatetype    extension: the aggregate type
//	eventversion     extension: the envelope's version, a number; absent for 0
//	correlationid    extension: the envelope's correlation_id; absent if empty
//	causationid      extension: the envelope's causation_id; absent if empty
//	traceparent      extension: the envelope's traceparent; absent if empty
//	tracestate       extension: the envelope's tracestate; absent if empty
//	data             the envelope's data
//
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md and
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
package cloudevent

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/seed-9a365b49/outbox/event"
)

// ContentType is the media type of one rendered event.
const ContentType = "application/cloudevents+json; charset=utf-8"

const (
	// timeLayout always prints six digits: timestamptz has microseconds, no more and no less.
	timeLayout = "2006-01-02T15:04:05.000000Z"
	// fixedSize is room for the attribute names and the values of known length (about 380 bytes).
	fixedSize = 448
)

// Append appends e, rendered as one line without a line break at its end, to dst and
// returns the extended slice. Data is copied byte for byte; only line breaks between
// its tokens, which jsonb never prints, become spaces.
//
// The result is valid JSON if e.Data is; an empty Data is left out. An event type that
// is empty or contains control characters, which only a foreign producer can have
// written, is passed on although CloudEvents does not allow it: whether to take such an
// event is the receiver's decision.
func Append(dst []byte, source string, e *event.Event) []byte {
	dst = slices.Grow(dst, fixedSize+len(source)+len(e.Type)+len(e.AggregateType)+len(e.Data)+
		len(e.Metadata.CorrelationID)+len(e.Metadata.CausationID)+len(e.Metadata.TraceParent)+len(e.Metadata.TraceState))

	dst = append(dst, `{"specversion":"1.0","id":"`...)
	dst = append(dst, e.PublicID.String()...)
	dst = append(dst, `","source":`...)
	dst = appendString(dst, source)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"subject":"`...)
	dst = append(dst, e.AggregateID.String()...)
	dst = append(dst, '"')
	dst = appendTime(dst, e.OccurredAt)
	dst = append(dst, `,"datacontenttype":"application/json","outboxid":"`...)
	dst = strconv.AppendInt(dst, e.ID, 10)
	dst = append(dst, '"')
	dst = appendOptional(dst, "aggregatetype", e.AggregateType)
	dst = appendVersion(dst, e.Version)
	dst = appendOptional(dst, "correlationid", e.Metadata.CorrelationID)
	dst = appendOptional(dst, "causationid", e.Metadata.CausationID)
	dst = appendOptional(dst, "traceparent", e.Metadata.TraceParent)
	dst = appendOptional(dst, "tracestate", e.Metadata.TraceState)
	dst = appendData(dst, e.Data)
	return append(dst, '}')
}

// appendTime leaves the attribute out for years that RFC 3339 cannot express: PostgreSQL's
// range is wider, and an SDK would refuse the whole event.
func appendTime(dst []byte, t time.Time) []byte {
	t = t.UTC()
	if year := t.Year(); year < 0 || year > 9999 {
		return dst
	}
	dst = append(dst, `,"time":"`...)
	dst = t.AppendFormat(dst, timeLayout)
	return append(dst, '"')
}

// appendVersion writes a string where the version does not fit CloudEvents' Integer, which has 32 bits.
func appendVersion(dst []byte, version int) []byte {
	if version == 0 {
		return dst
	}
	if version < math.MinInt32 || version > math.MaxInt32 {
		return appendOptional(dst, "eventversion", strconv.Itoa(version))
	}
	dst = append(dst, `,"eventversion":`...)
	return strconv.AppendInt(dst, int64(version), 10)
}

func appendOptional(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	dst = append(dst, `":`...)
	return appendString(dst, value)
}

// appendData keeps the event on one line. Inside JSON strings a line break is always
// escaped, so a bare one is white space and can be replaced.
func appendData(dst, data []byte) []byte {
	if len(data) == 0 {
		return dst
	}
	dst = append(dst, `,"data":`...)
	start := len(dst)
	dst = append(dst, data...)
	for i, c := range dst[start:] {
		if c == '\n' || c == '\r' {
			dst[start+i] = ' '
		}
	}
	return dst
}
