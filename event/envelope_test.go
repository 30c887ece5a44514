package event_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/event"
)

func TestParseEnvelope(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`[`, 9000) + strings.Repeat(`]`, 9000)
	tests := map[string]struct {
		payload string
		want    event.Envelope
	}{
		"as the specification writes it": {
			`{"version": 1, "data": {"a": [1, "}"]}, "metadata": {"causation_id": "c", "correlation_id": "w"}}`,
			event.Envelope{Version: 1, Data: json.RawMessage(`{"a": [1, "}"]}`), Metadata: event.Metadata{CausationID: "c", CorrelationID: "w"}},
		},
		"in the order of jsonb": {
			`{"data": 1, "version": 3, "metadata": {"traceparent": "00-aa-bb-01"}}`,
			event.Envelope{Version: 3, Data: json.RawMessage(`1`), Metadata: event.Metadata{TraceParent: "00-aa-bb-01"}},
		},
		"numbers keep every digit": {
			`{"data": [9007199254740993, 1.10, 1e400], "version": 1}`,
			event.Envelope{Version: 1, Data: json.RawMessage(`[9007199254740993, 1.10, 1e400]`)},
		},
		"data may be null":          {`{"version":1,"data":null}`, event.Envelope{Version: 1, Data: json.RawMessage(`null`)}},
		"data may be a string":      {`{"version":1,"data":"a\\\"b,}"}`, event.Envelope{Version: 1, Data: json.RawMessage(`"a\\\"b,}"`)}},
		"data may be an empty list": {`{"version":1,"data":[]}`, event.Envelope{Version: 1, Data: json.RawMessage(`[]`)}},
		"data may be deep":          {`{"version":1,"data":` + deep + `}`, event.Envelope{Version: 1, Data: json.RawMessage(deep)}},
		"white space anywhere": {
			"\n{ \"version\" :\t1 ,\r\n\"data\" : true }\n",
			event.Envelope{Version: 1, Data: json.RawMessage(`true`)},
		},
		"a name with escapes":                       {`{"\u0076ersion":1,"data":2}`, event.Envelope{Version: 1, Data: json.RawMessage(`2`)}},
		"unknown members are ignored":               {`{"x":{"version":9},"version":1,"data":2,"metadata":{"y":[1]}}`, event.Envelope{Version: 1, Data: json.RawMessage(`2`)}},
		"the last of equal names wins, as in jsonb": {`{"version":1,"data":1,"version":2,"data":2}`, event.Envelope{Version: 2, Data: json.RawMessage(`2`)}},
		"metadata with escapes": {
			`{"version":1,"data":2,"metadata":{"correlation_id":"\u00e9\"\n"}}`,
			event.Envelope{Version: 1, Data: json.RawMessage(`2`), Metadata: event.Metadata{CorrelationID: "é\"\n"}},
		},
		"metadata null":     {`{"version":1,"data":2,"metadata":null}`, event.Envelope{Version: 1, Data: json.RawMessage(`2`)}},
		"metadata a list":   {`{"version":1,"data":2,"metadata":["causation_id"]}`, event.Envelope{Version: 1, Data: json.RawMessage(`2`)}},
		"metadata a string": {`{"version":1,"data":2,"metadata":"causation_id"}`, event.Envelope{Version: 1, Data: json.RawMessage(`2`)}},
		"a metadata field that is not a string is left out": {
			`{"version":1,"data":2,"metadata":{"correlation_id":42,"causation_id":"c"}}`,
			event.Envelope{Version: 1, Data: json.RawMessage(`2`), Metadata: event.Metadata{CausationID: "c"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := event.ParseEnvelope([]byte(tt.payload))
			if err != nil {
				t.Fatal(err)
			}
			if !equal(got, tt.want) {
				t.Fatalf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestParseEnvelopeRefusesForeignPayloads(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		``, ` `, `null`, `true`, `1`, `"version"`, `[]`, `[{"version":1,"data":2}]`, `{}`,
		`{"version":1}`, `{"data":1}`, `{"version":0,"data":1}`, `{"version":-1,"data":1}`,
		`{"version":"1","data":1}`, `{"version":null,"data":1}`, `{"version":1.0,"data":1}`, `{"version":1e2,"data":1}`,
		`{"version":true,"data":1}`, `{"version":[1],"data":1}`, `{"version":99999999999999999999,"data":1}`,
		`{"Version":1,"Data":2}`, `{"VERSION":1,"data":2}`, `{"version":1,"DATA":2}`, `{"version ":1,"data":2}`,
		`{"x":{"version":1,"data":2}}`, `{"version":1,"x":{"data":2}}`,
	} {
		if got, err := event.ParseEnvelope([]byte(payload)); err != event.ErrNotEnvelope {
			t.Errorf("%s: got %+v, %v, want ErrNotEnvelope", payload, got, err)
		}
	}
}

func TestParseEnvelopeDataIsSafeToAppendTo(t *testing.T) {
	t.Parallel()
	payload := []byte(`{"data":[1],"version":1}`)
	e, err := event.ParseEnvelope(payload)
	if err != nil {
		t.Fatal(err)
	}
	_ = append(e.Data, "overwritten"...)
	if string(payload) != `{"data":[1],"version":1}` {
		t.Fatalf("the append wrote into the payload: %s", payload)
	}
}

func TestEnvelopeAppendJSON(t *testing.T) {
	t.Parallel()
	t.Run("appends", func(t *testing.T) {
		t.Parallel()
		e := event.Envelope{Version: 2, Data: json.RawMessage(`{"a":1.10}`), Metadata: event.Metadata{CorrelationID: "w", TraceParent: "t"}}
		got := string(e.AppendJSON([]byte("x")))
		if want := `x{"version":2,"data":{"a":1.10},"metadata":{"correlation_id":"w","traceparent":"t"}}`; got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
	t.Run("omits empty metadata", func(t *testing.T) {
		t.Parallel()
		got := string(event.Envelope{Version: 1, Data: json.RawMessage(`null`)}.AppendJSON(nil))
		if want := `{"version":1,"data":null}`; got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
	t.Run("is read back as it was", rapid.MakeCheck(func(t *rapid.T) {
		text := rapid.String()
		data, err := json.Marshal(text.Draw(t, "data"))
		if err != nil {
			t.Fatal(err)
		}
		want := event.Envelope{
			Version: rapid.IntMin(1).Draw(t, "version"),
			Data:    data,
			Metadata: event.Metadata{
				CausationID:   text.Draw(t, "causation"),
				CorrelationID: text.Draw(t, "correlation"),
				TraceParent:   text.Draw(t, "traceparent"),
				TraceState:    text.Draw(t, "tracestate"),
			},
		}
		payload := want.AppendJSON(nil)
		if got, err := event.ParseEnvelope(payload); err != nil || !equal(got, want) {
			t.Fatalf("%s: got %+v, %v, want %+v", payload, got, err, want)
		}
		var got event.Envelope
		if err := json.Unmarshal(payload, &got); err != nil || !equal(got, want) {
			t.Fatalf("%s: encoding/json reads %+v, %v, want %+v", payload, got, err, want)
		}
	}))
}

// FuzzParseEnvelope compares the hand-written scanner with encoding/json.
func FuzzParseEnvelope(f *testing.F) {
	for _, seed := range []string{
		`{"version": 1, "data": {"a": [1, "}"]}, "metadata": {"causation_id": "c", "correlation_id": "w", "traceparent": "t", "tracestate": "s"}}`,
		`{"data":"a\\\"b,}","version":1}`, `{"\u0076ersion":1,"data":2}`, `{"Version":1,"data":null}`, `[1]`, `{"version":1,"data":[[]],"metadata":[]}`,
		`{"version":1`, `{"data":"\"`, `{"version":1,"data":]`, `{"version":1,"data":2,"metadata":{"correlation_id":"\ud83d\ude00\n"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := event.ParseEnvelope(payload)
		if !json.Valid(payload) || !utf8.Valid(payload) {
			return
		}
		want, ok := parseWithEncodingJSON(payload)
		if (err == nil) != ok || !equal(got, want) {
			t.Fatalf("got %+v, %v, want %+v, %t", got, err, want, ok)
		}
		if !ok {
			return
		}
		again, err := event.ParseEnvelope(got.AppendJSON(nil))
		if err != nil || !equal(again, got) {
			t.Fatalf("written and read again: %+v, %v, want %+v", again, err, got)
		}
	})
}

// parseWithEncodingJSON is the plain form of ParseEnvelope; maps compare names exactly.
func parseWithEncodingJSON(payload []byte) (event.Envelope, bool) {
	var e event.Envelope
	var members map[string]json.RawMessage
	if json.Unmarshal(payload, &members) != nil {
		return e, false
	}
	e.Data = members["data"]
	if json.Unmarshal(members["version"], &e.Version) != nil || e.Version < 1 || e.Data == nil {
		return event.Envelope{}, false
	}
	var metadata map[string]json.RawMessage
	_ = json.Unmarshal(members["metadata"], &metadata)
	_ = json.Unmarshal(metadata["causation_id"], &e.Metadata.CausationID)
	_ = json.Unmarshal(metadata["correlation_id"], &e.Metadata.CorrelationID)
	_ = json.Unmarshal(metadata["traceparent"], &e.Metadata.TraceParent)
	_ = json.Unmarshal(metadata["tracestate"], &e.Metadata.TraceState)
	return e, true
}

func equal(a, b event.Envelope) bool {
	return a.Version == b.Version && string(a.Data) == string(b.Data) && a.Metadata == b.Metadata
}

var benchPayload = []byte(`{"data": {"note": "` + strings.Repeat("abcdefgh ", 50) + `", "lines": [` +
	strings.Repeat(`{"sku": "A-1", "qty": 2, "price": 19.99}, `, 15) +
	`1]}, "version": 1, "metadata": {"causation_id": "b0f7fd5c-1111-5222-8333-000000000000", "correlation_id": "req-1"}}`)

func BenchmarkParseEnvelope(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(benchPayload)))
	for b.Loop() {
		if _, err := event.ParseEnvelope(benchPayload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnvelopeAppendJSON(b *testing.B) {
	e, err := event.ParseEnvelope(benchPayload)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		e.AppendJSON(make([]byte, 0, len(benchPayload)+64))
	}
}
