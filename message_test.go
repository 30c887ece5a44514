package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/event"
)

var aggregateID = uuid.MustParse("0198a3c4-7a52-7cc3-98c4-dc0c0c07398f")

// message returns a valid message.
func message() Message {
	return Message{AggregateType: "order", AggregateID: aggregateID, EventType: "OrderPlaced", Data: map[string]int{"total": 1}}
}

type (
	node      struct{ Next *node }
	panics    struct{}
	notJSON   struct{}
	badNumber struct{ N json.Number }
	withRaw   struct{ Raw json.RawMessage }
)

func (panics) MarshalJSON() ([]byte, error)  { panic("boom") }
func (notJSON) MarshalJSON() ([]byte, error) { return []byte("{"), nil }

func TestMessagePayload(t *testing.T) {
	t.Parallel()
	handled := &event.Event{
		PublicID: uuid.MustParse("11111111-1111-5111-8111-111111111111"),
		Metadata: event.Metadata{CorrelationID: "workflow", TraceParent: "trace"},
	}
	inHandler := func(ctx context.Context) context.Context { return event.NewContext(ctx, handled) }
	var nilRaw json.RawMessage
	var nilNode *node
	tests := map[string]struct {
		change func(*Message)
		ctx    func(context.Context) context.Context
		want   string
	}{
		"a struct":        {change: func(m *Message) { m.Data = node{} }, want: `{"version":1,"data":{"Next":null}}`},
		"a string":        {change: func(m *Message) { m.Data = "a" }, want: `{"version":1,"data":"a"}`},
		"nil":             {change: func(m *Message) { m.Data = nil }, want: `{"version":1,"data":null}`},
		"a nil pointer":   {change: func(m *Message) { m.Data = nilNode }, want: `{"version":1,"data":null}`},
		"a nil raw value": {change: func(m *Message) { m.Data = nilRaw }, want: `{"version":1,"data":null}`},
		"bytes in a field": {
			change: func(m *Message) { m.Data = map[string][]byte{"key": {1, 2}} },
			want:   `{"version":1,"data":{"key":"AQI="}}`,
		},
		"raw JSON is not touched": {
			change: func(m *Message) {
				m.Data = json.RawMessage(" {\"b\": 9007199254740993,\n\"a\": 1.10, \"a\": \"<\\u00e9>\"} ")
			},
			want: "{\"version\":1,\"data\": {\"b\": 9007199254740993,\n\"a\": 1.10, \"a\": \"<\\u00e9>\"} }",
		},
		"numbers keep every digit": {
			change: func(m *Message) {
				m.Data = []any{int64(math.MaxInt64), uint64(math.MaxUint64), json.Number("3.1415926535897932384626433832795"), withRaw{json.RawMessage("1e400")}}
			},
			want: `{"version":1,"data":[9223372036854775807,18446744073709551615,3.1415926535897932384626433832795,{"Raw":1e400}]}`,
		},
		"no escaping for browsers":          {change: func(m *Message) { m.Data = "https://example.org/?a=1&b=<2>" }, want: `{"version":1,"data":"https://example.org/?a=1&b=<2>"}`},
		"invalid UTF-8 in a Go string":      {change: func(m *Message) { m.Data = "a\xff" }, want: `{"version":1,"data":"a\ufffd"}`},
		"a version":                         {change: func(m *Message) { m.Version = 7 }, want: `{"version":7,"data":{"total":1}}`},
		"metadata of the message":           {change: func(m *Message) { m.CorrelationID, m.CausationID, m.TraceParent = "w", "c", "t" }, want: `{"version":1,"data":{"total":1},"metadata":{"causation_id":"c","correlation_id":"w","traceparent":"t"}}`},
		"metadata of the context":           {ctx: inHandler, want: `{"version":1,"data":{"total":1},"metadata":{"causation_id":"11111111-1111-5111-8111-111111111111","correlation_id":"workflow","traceparent":"trace"}}`},
		"the message wins over the context": {ctx: inHandler, change: func(m *Message) { m.CorrelationID = "w" }, want: `{"version":1,"data":{"total":1},"metadata":{"causation_id":"11111111-1111-5111-8111-111111111111","correlation_id":"w","traceparent":"trace"}}`},
		"quotes in metadata":                {change: func(m *Message) { m.CorrelationID = `"a\` }, want: `{"version":1,"data":{"total":1},"metadata":{"correlation_id":"\"a\\"}}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, ctx := message(), t.Context()
			if tt.change != nil {
				tt.change(&m)
			}
			if tt.ctx != nil {
				ctx = tt.ctx(ctx)
			}
			r, problems := m.row(ctx, -1)
			if problems != nil {
				t.Fatal(problems)
			}
			if got := r.payload(); got != tt.want {
				t.Fatalf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestMessageRejections(t *testing.T) {
	t.Parallel()
	cycle := &node{}
	cycle.Next = cycle
	list := []any{nil}
	list[0] = list
	dictionary := map[string]any{}
	dictionary["self"] = dictionary
	type rejection struct {
		change      func(*Message)
		field, text string
	}
	data := func(value any, text string) rejection {
		return rejection{func(m *Message) { m.Data = value }, "data", text}
	}
	tests := map[string]rejection{
		"no aggregate type":              {func(m *Message) { m.AggregateType = "" }, "aggregate_type", "is empty"},
		"NUL in the aggregate type":      {func(m *Message) { m.AggregateType = "a\x00" }, "aggregate_type", "NUL"},
		"aggregate type not UTF-8":       {func(m *Message) { m.AggregateType = "a\xff" }, "aggregate_type", "UTF-8"},
		"aggregate type too long":        {func(m *Message) { m.AggregateType = strings.Repeat("a", 2049) }, "aggregate_type", "2049 bytes"},
		"nil UUID":                       {func(m *Message) { m.AggregateID = uuid.Nil }, "aggregate_id", "nil UUID"},
		"no event type":                  {func(m *Message) { m.EventType = "" }, "event_type", "is empty"},
		"NUL in the event type":          {func(m *Message) { m.EventType = "\x00" }, "event_type", "NUL"},
		"event type not UTF-8":           {func(m *Message) { m.EventType = "\xed\xa0\x80" }, "event_type", "UTF-8"},
		"event type too long":            {func(m *Message) { m.EventType = strings.Repeat("é", 1025) }, "event_type", "2050 bytes"},
		"negative version":               {func(m *Message) { m.Version = -1 }, "version", "less than 1"},
		"NUL in the correlation id":      {func(m *Message) { m.CorrelationID = "\x00" }, "correlation_id", "NUL"},
		"causation id not UTF-8":         {func(m *Message) { m.CausationID = "\xff" }, "causation_id", "UTF-8"},
		"traceparent not UTF-8":          {func(m *Message) { m.TraceParent = "\xff" }, "traceparent", "UTF-8"},
		"before the year 1":              {func(m *Message) { m.OccurredAt = time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC) }, "occurred_at", "year 0"},
		"after the year 9999":            {func(m *Message) { m.OccurredAt = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -7200)) }, "occurred_at", "year 10000"},
		"a func":                         data(func() {}, "unsupported type: func()"),
		"a chan in a field":              data(map[string]any{"a": make(chan int)}, "unsupported type: chan int"),
		"a complex number":               data(1i, "unsupported type: complex128"),
		"NaN":                            data(math.NaN(), "unsupported value: NaN"),
		"infinity":                       data([]float64{math.Inf(-1)}, "unsupported value: -Inf"),
		"a cycle of pointers":            data(cycle, "cycle"),
		"a cycle of lists":               data(list, "cycle"),
		"a cycle of maps":                data(dictionary, "cycle"),
		"a marshaller that panics":       data(panics{}, "marshalling it panicked: boom"),
		"one of them in a field":         data(map[string]any{"a": []panics{{}}}, "marshalling it panicked: boom"),
		"a marshaller of broken JSON":    data(notJSON{}, "unexpected end of JSON input"),
		"a broken json.Number":           data(badNumber{"1x"}, "invalid number"),
		"a number beyond jsonb":          data(badNumber{"1e131072"}, "number at byte 5 has more than"),
		"broken raw JSON":                data(json.RawMessage(`{"a":}`), "is not JSON: invalid character '}'"),
		"empty raw JSON":                 data(json.RawMessage{}, "is not JSON: unexpected end"),
		"two raw values":                 data(json.RawMessage(`1 2`), "is not JSON"),
		"raw JSON with a BOM":            data(json.RawMessage("\ufeff{}"), "is not JSON"),
		"broken raw JSON in a field":     data(withRaw{json.RawMessage(`{`)}, "unexpected end"),
		"raw JSON in a field, not UTF-8": data(withRaw{json.RawMessage("\"\xff\"")}, "not valid UTF-8"),
		"NUL in a string":                data("a\x00b", "contains NUL"),
		"NUL in a name":                  data(map[string]int{"\x00": 1}, "contains NUL"),
		"a lone surrogate in raw JSON":   data(json.RawMessage(`["\ud800"]`), "surrogate"),
		"bytes":                          data([]byte(`{}`), "ambiguous"),
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := message()
			tt.change(&m)
			_, err := publish(t.Context(), neverQueried(t), m)
			var invalid *InvalidMessageError
			if !errors.Is(err, ErrInvalidMessage) || !errors.As(err, &invalid) {
				t.Fatalf("got %v, want an InvalidMessageError", err)
			}
			if len(invalid.Fields) != 1 || invalid.Fields[0].Field != tt.field || invalid.Fields[0].Index != -1 {
				t.Fatalf("got %+v, want one problem with %s", invalid.Fields, tt.field)
			}
			prefix := "invalid message: " + tt.field + ": "
			if text := err.Error(); !strings.HasPrefix(text, prefix) || !strings.Contains(text, tt.text) {
				t.Fatalf("got %q, want %q … %q", text, prefix, tt.text)
			}
		})
	}
}

func TestInvalidMessageError(t *testing.T) {
	t.Parallel()
	t.Run("lists every problem", func(t *testing.T) {
		t.Parallel()
		_, err := publish(t.Context(), neverQueried(t), Message{Data: func() {}, Version: -1})
		want := "invalid message: aggregate_type: is empty; aggregate_id: is the nil UUID; event_type: is empty; " +
			"data: json: unsupported type: func(); version: -1 is less than 1"
		if err.Error() != want {
			t.Fatalf("got  %s\nwant %s", err, want)
		}
		var unsupported *json.UnsupportedTypeError
		if !errors.As(err, &unsupported) || unsupported.Type.Kind() != reflect.Func {
			t.Fatalf("encoding/json's error is lost in %v", err)
		}
	})
	t.Run("names the position in a batch", func(t *testing.T) {
		t.Parallel()
		bad, worse := message(), message()
		bad.EventType, worse.Version, worse.CausationID = "", -2, "\x00"
		_, err := publishBatch(t.Context(), neverQueried(t), []Message{message(), bad, message(), worse})
		want := "invalid message: message 1: event_type: is empty; message 3: version: -2 is less than 1; message 3: causation_id: contains NUL"
		if err.Error() != want {
			t.Fatalf("got  %s\nwant %s", err, want)
		}
		var field FieldError
		if !errors.As(err, &field) || field.Index != 1 || field.Field != "event_type" {
			t.Fatalf("got %+v", field)
		}
	})
}

// neverQueried fails the test if anything is sent to the database.
func neverQueried(t *testing.T) queryRow {
	return func(_ context.Context, sql string, _ ...any) scanner {
		t.Fatalf("sent to the database: %s", sql)
		return nil
	}
}

func BenchmarkMessageRow(b *testing.B) {
	type line struct {
		SKU   string  `json:"sku"`
		Qty   int     `json:"qty"`
		Price float64 `json:"price"`
	}
	type order struct {
		Note  string `json:"note"`
		Lines []line `json:"lines"`
	}
	value := order{Note: strings.Repeat("abcdefgh ", 50)}
	for range 15 {
		value.Lines = append(value.Lines, line{"A-1", 2, 19.99})
	}
	raw, err := json.Marshal(value)
	if err != nil {
		b.Fatal(err)
	}
	for name, data := range map[string]any{"struct": value, "raw": json.RawMessage(raw)} {
		b.Run(name, func(b *testing.B) {
			m := message()
			m.Data = data
			m.CorrelationID = "request-1"
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				r, problems := m.row(b.Context(), -1)
				if problems != nil {
					b.Fatal(problems)
				}
				_ = r.payload()
			}
		})
	}
}
