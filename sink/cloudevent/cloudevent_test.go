package cloudevent

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/event"
)

const source = "/outbox/billing"

func newEvent() *event.Event {
	return &event.Event{
		ID:            9007199254740993,
		PublicID:      uuid.MustParse("6f1e0d5c-3b7a-5c2e-9d4f-0a1b2c3d4e5f"),
		AggregateType: "subscription",
		AggregateID:   uuid.MustParse("018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091"),
		Type:          "PaymentSucceeded",
		OccurredAt:    time.Date(2025, 3, 9, 23, 59, 58, 120_000_000, time.FixedZone("KST", 9*3600)),
		Version:       2,
		Data:          json.RawMessage(`{"amount": 9007199254740993, "note": "a<b & c\u0000"}`),
		Metadata: event.Metadata{
			CausationID:   "3d0c8c0e-3df4-5a5b-8b57-6a6f3e6d2c11",
			CorrelationID: "checkout-42",
			TraceParent:   "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			TraceState:    "vendor=1",
		},
		Attempt: 1,
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()

	t.Run("renders every attribute in a stable order", func(t *testing.T) {
		t.Parallel()
		want := `{"specversion":"1.0"` +
			`,"id":"6f1e0d5c-3b7a-5c2e-9d4f-0a1b2c3d4e5f"` +
			`,"source":"/outbox/billing"` +
			`,"type":"PaymentSucceeded"` +
			`,"subject":"018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091"` +
			`,"time":"2025-03-09T14:59:58.120000Z"` +
			`,"datacontenttype":"application/json"` +
			`,"outboxid":"9007199254740993"` +
			`,"aggregatetype":"subscription"` +
			`,"eventversion":2` +
			`,"correlationid":"checkout-42"` +
			`,"causationid":"3d0c8c0e-3df4-5a5b-8b57-6a6f3e6d2c11"` +
			`,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"` +
			`,"tracestate":"vendor=1"` +
			`,"data":{"amount": 9007199254740993, "note": "a<b & c\u0000"}}`
		if got := string(Append(nil, source, newEvent())); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})

	t.Run("appends to what is there", func(t *testing.T) {
		t.Parallel()
		got := Append([]byte("before "), source, newEvent())
		if want := "before " + string(Append(nil, source, newEvent())); string(got) != want {
			t.Errorf("got %s", got)
		}
	})

	t.Run("names attributes in lower-case letters and digits, at most 20", func(t *testing.T) {
		t.Parallel()
		var attributes map[string]any
		if err := json.Unmarshal(Append(nil, source, newEvent()), &attributes); err != nil {
			t.Fatal(err)
		}
		name := regexp.MustCompile(`^[a-z0-9]{1,20}$`)
		for key := range attributes {
			if !name.MatchString(key) {
				t.Errorf("attribute %q", key)
			}
		}
	})

	fragments := []struct {
		name   string
		change func(e *event.Event)
		want   string // "" where only absence matters
		absent string
	}{
		{
			"a version of 0 is left out",
			func(e *event.Event) { e.Version = 0 },
			`"aggregatetype":"subscription","correlationid":`, "eventversion",
		},
		{
			"a version beyond CloudEvents' 32-bit Integer is a string",
			func(e *event.Event) { e.Version = 1 << 31 },
			`"eventversion":"2147483648"`, "",
		},
		{
			"the largest 32-bit version is a number",
			func(e *event.Event) { e.Version = 1<<31 - 1 },
			`"eventversion":2147483647,`, "",
		},
		{"an empty correlation id is left out", func(e *event.Event) { e.Metadata.CorrelationID = "" }, "", "correlationid"},
		{"an empty causation id is left out", func(e *event.Event) { e.Metadata.CausationID = "" }, "", "causationid"},
		{"an empty traceparent is left out", func(e *event.Event) { e.Metadata.TraceParent = "" }, "", "traceparent"},
		{"an empty tracestate is left out", func(e *event.Event) { e.Metadata.TraceState = "" }, "", "tracestate"},
		{"an empty aggregate type is left out", func(e *event.Event) { e.AggregateType = "" }, "", "aggregatetype"},
		{
			"microseconds are always six digits",
			func(e *event.Event) { e.OccurredAt = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC) },
			`"time":"2025-01-01T00:00:00.000000Z"`, "",
		},
		{
			"a year that RFC 3339 cannot express is left out",
			func(e *event.Event) { e.OccurredAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
			"", `"time"`,
		},
		{
			"a year before Christ is left out",
			func(e *event.Event) { e.OccurredAt = time.Date(-4712, 1, 1, 0, 0, 0, 0, time.UTC) },
			"", `"time"`,
		},
		{"missing data is left out", func(e *event.Event) { e.Data = nil }, "", `"data":`},
		{"data can be null", func(e *event.Event) { e.Data = json.RawMessage("null") }, `,"data":null}`, ""},
		{
			"numbers keep every digit",
			func(e *event.Event) { e.Data = json.RawMessage(`[1e400, 0.10, -0, 12345678901234567890]`) },
			`,"data":[1e400, 0.10, -0, 12345678901234567890]}`, "",
		},
		{
			"line breaks between tokens of data become spaces",
			func(e *event.Event) { e.Data = json.RawMessage("{\r\n\t\"a\": \"x\\ny\"\n}") },
			",\"data\":{  \t\"a\": \"x\\ny\" }}", "",
		},
		{
			"quotes and backslashes are escaped",
			func(e *event.Event) { e.Type = `say "hi" \o/` },
			`"type":"say \"hi\" \\o/"`, "",
		},
		{
			"control characters are escaped",
			func(e *event.Event) { e.Type = "a\nb\rc\td\x00e\x1ff" },
			`"type":"a\nb\rc\td\u0000e\u001ff"`, "",
		},
		{
			"U+2028 and U+2029 are escaped",
			func(e *event.Event) { e.Type = "a\u2028b\u2029c" },
			`"type":"a\u2028b\u2029c"`, "",
		},
		{
			"HTML is not escaped",
			func(e *event.Event) { e.AggregateType = "<a & b>" },
			`"aggregatetype":"<a & b>"`, "",
		},
		{
			"other scripts are kept",
			func(e *event.Event) { e.Type = "결제 성공 🎉" },
			`"type":"결제 성공 🎉"`, "",
		},
		{
			"bytes that are not UTF-8 are replaced",
			func(e *event.Event) { e.Type = "a\xffb\xed\xa0\x80" },
			"\"type\":\"a\ufffdb\ufffd\ufffd\ufffd\"", "",
		},
	}
	for _, tt := range fragments {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEvent()
			tt.change(e)
			got := Append(nil, source, e)
			if !json.Valid(got) {
				t.Errorf("not JSON: %s", got)
			}
			if !bytes.Contains(got, []byte(tt.want)) {
				t.Errorf("%s\ndoes not contain %s", got, tt.want)
			}
			if tt.absent != "" && bytes.Contains(got, []byte(tt.absent)) {
				t.Errorf("%s\ncontains %s", got, tt.absent)
			}
		})
	}
}

func TestSource(t *testing.T) {
	t.Parallel()

	t.Run("the default names the database and is always valid", func(t *testing.T) {
		t.Parallel()
		for database, want := range map[string]string{
			"billing":   "/outbox/billing",
			"my db/2":   "/outbox/my%20db%2F2",
			"결제":        "/outbox/%EA%B2%B0%EC%A0%9C",
			`"a" <b|c>`: "/outbox/%22a%22%20%3Cb%7Cc%3E",
		} {
			got := DefaultSource(database)
			if got != want {
				t.Errorf("DefaultSource(%q) = %q, want %q", database, got, want)
			}
			if err := CheckSource(got); err != nil {
				t.Errorf("CheckSource(%q): %v", got, err)
			}
		}
	})

	t.Run("URIs, URNs and paths are accepted", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{"https://billing.example.com/a?b=c#d", "urn:example:billing", "/a", "billing", "mailto:a@example.com"} {
			if err := CheckSource(s); err != nil {
				t.Errorf("CheckSource(%q): %v", s, err)
			}
		}
	})

	t.Run("anything else is refused in one line", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{"", "a b", "a\nb", "/outbox/결제", "<x>", "/a{b}", "%zz", "http://[::1"} {
			err := CheckSource(s)
			if err == nil {
				t.Errorf("CheckSource(%q) = nil", s)
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("CheckSource(%q): more than one line: %v", s, err)
			}
		}
	})
}

func FuzzAppend(f *testing.F) {
	f.Add("/outbox/billing", "PaymentSucceeded", "subscription", "c-1", []byte(`{"a": 1}`), int64(1), int64(1700000000000000), 1)
	f.Add("s\"", "a\nb", "\u2028", "<>&\\", []byte("[\r\n1e400,\t\"\\u0000\u2028\"]"), int64(-1), int64(1)<<62, 0)
	f.Add("", "", "\xff", "\x00", []byte(" null "), int64(0), -int64(1)<<62, 1<<40)
	f.Fuzz(func(t *testing.T, source, eventType, aggregateType, correlation string, data []byte, id, micros int64, version int) {
		if !json.Valid(data) {
			t.Skip()
		}
		e := &event.Event{
			ID: id, AggregateType: aggregateType, Type: eventType, OccurredAt: time.UnixMicro(micros),
			Version: version, Data: data, Metadata: event.Metadata{CorrelationID: correlation},
		}
		got := Append(nil, source, e)

		if bytes.ContainsAny(got, "\n\r") {
			t.Fatalf("more than one line: %q", got)
		}
		if want := append(bytes.Map(lineBreakToSpace, data), '}'); utf8Equal(data) && !bytes.HasSuffix(got, want) {
			t.Fatalf("data changed: %q does not end with %q", got, want)
		}
		var back struct {
			Source        string
			Type          string
			AggregateType string
			CorrelationID string
			Time          *time.Time
			Data          json.RawMessage
		}
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatalf("not JSON: %v: %q", err, got)
		}
		for _, pair := range [][2]string{
			{back.Source, source},
			{back.Type, eventType},
			{back.AggregateType, aggregateType},
			{back.CorrelationID, correlation},
		} {
			if want := string([]rune(pair[1])); pair[0] != want {
				t.Errorf("string came back as %q, want %q", pair[0], want)
			}
		}
		if back.Time != nil && !back.Time.Equal(e.OccurredAt) {
			t.Errorf("time came back as %v, want %v", back.Time, e.OccurredAt)
		}
		if !sameJSON(back.Data, data) {
			t.Errorf("data came back as %q, want %q", back.Data, data)
		}
	})
}

func lineBreakToSpace(r rune) rune {
	if r == '\n' || r == '\r' {
		return ' '
	}
	return r
}

// utf8Equal reports whether bytes.Map leaves data's other bytes alone.
func utf8Equal(data []byte) bool {
	return bytes.Equal(bytes.ToValidUTF8(data, nil), data)
}

func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

func BenchmarkAppend(b *testing.B) {
	for _, bench := range []struct {
		name string
		data []byte
	}{
		{"100B", []byte(`{"text": "` + strings.Repeat("x", 88) + `"}`)},
		{"1KiB", []byte(`{"text": "` + strings.Repeat("x", 1012) + `"}`)},
		{"64KiB", []byte(`{"text": "` + strings.Repeat("x", 64<<10-12) + `"}`)},
	} {
		e := newEvent()
		e.Data = bench.data
		b.Run(bench.name+"/fresh", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Append(nil, source, e)
			}
		})
		b.Run(bench.name+"/reused", func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = Append(buf[:0], source, e)
			}
		})
	}
	// The floor: what encoding/json takes for the same event.
	b.Run("1KiB/encoding-json", func(b *testing.B) {
		e := newEvent()
		e.Data = []byte(`{"text": "` + strings.Repeat("x", 1012) + `"}`)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(map[string]any{
				"specversion": "1.0", "id": e.PublicID, "source": source, "type": e.Type, "subject": e.AggregateID,
				"time": e.OccurredAt, "datacontenttype": "application/json", "outboxid": "1",
				"aggregatetype": e.AggregateType, "eventversion": e.Version, "data": e.Data,
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
