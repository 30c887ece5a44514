package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
)

// Envelope is the standard structure of events.outbox.payload (specification, "Event envelope").
type Envelope struct {
	Version  int             `json:"version"`
	Data     json.RawMessage `json:"data"`
	Metadata Metadata        `json:"metadata,omitzero"`
}

// Metadata is the envelope's optional tracing part. Fields that this package does not
// know are kept out of it; they stay in the payload.
type Metadata struct {
	// CausationID is the public id of the event that caused this one.
	CausationID string `json:"causation_id,omitempty"`
	// CorrelationID is the workflow or request that this event belongs to.
	CorrelationID string `json:"correlation_id,omitempty"`
	// TraceParent is the W3C trace context of the publisher.
	TraceParent string `json:"traceparent,omitempty"`
	// TraceState is what tracing systems add to TraceParent (W3C Trace Context, tracestate); nothing without it.
	TraceState string `json:"tracestate,omitempty"`
}

// ErrNotEnvelope is returned by [ParseEnvelope] for a payload that does not have the
// envelope's structure, such as one written by a foreign producer.
var ErrNotEnvelope = errors.New("payload is not an envelope (an object with an integer version ≥ 1 and data)")

// ParseEnvelope reads an envelope from a payload that is valid JSON, as a jsonb column always
// is; of anything else it makes an unspecified envelope or [ErrNotEnvelope].
//
// Data is a part of payload, not a copy, so numbers keep every digit. Names are
// compared exactly: {"Version": 1, "Data": …} is a foreign payload. Metadata never decides: what is
// not an object of strings there is left out, since losing a trace is better than handing
// the handler data of another shape.
func ParseEnvelope(payload []byte) (Envelope, error) {
	var e Envelope
	for name, value := range members(payload) {
		switch string(name) {
		case `"version"`:
			e.Version = parseVersion(value)
		case `"data"`:
			e.Data = value
		case `"metadata"`:
			e.Metadata = parseMetadata(value)
		}
	}
	if e.Version < 1 || e.Data == nil {
		return Envelope{}, ErrNotEnvelope
	}
	return e, nil
}

// parseVersion returns 0 for anything but an integer, such as 1.5, 1e2, "1" or null.
func parseVersion(value []byte) int {
	version, err := strconv.Atoi(string(value))
	if err != nil { // Atoi returns the nearest int for one out of range
		return 0
	}
	return version
}

func parseMetadata(object []byte) Metadata {
	var m Metadata
	for name, value := range members(object) {
		switch string(name) {
		case `"causation_id"`:
			m.CausationID = unquote(value)
		case `"correlation_id"`:
			m.CorrelationID = unquote(value)
		case `"traceparent"`:
			m.TraceParent = unquote(value)
		case `"tracestate"`:
			m.TraceState = unquote(value)
		}
	}
	return m
}

// unquote returns the string of a JSON string, and "" for any other value.
func unquote(value []byte) string {
	if value[0] != '"' {
		return ""
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1])
	}
	var s string
	if json.Unmarshal(value, &s) != nil {
		return ""
	}
	return s
}

// AppendJSON appends the envelope as JSON to dst. Data must be valid JSON and is appended as it
// is; encoding/json would scan, compact and copy it again. Metadata without a value is left out.
func (e Envelope) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"version":`...)
	dst = strconv.AppendInt(dst, int64(e.Version), 10)
	dst = append(dst, `,"data":`...)
	dst = append(dst, e.Data...)
	if e.Metadata != (Metadata{}) {
		// A struct of strings always marshals.
		metadata, _ := json.Marshal(e.Metadata)
		dst = append(dst, `,"metadata":`...)
		dst = append(dst, metadata...)
	}
	return append(dst, '}')
}
