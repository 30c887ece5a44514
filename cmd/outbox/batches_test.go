package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestParseLine(t *testing.T) {
	t.Parallel()
	const start = `{"aggregate_type":"invoice","aggregate_id":"018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091"`

	t.Run("reads every field", func(t *testing.T) {
		t.Parallel()
		m, err := parseLine([]byte(start + `,"event_type":"InvoicePaid","data":{"n":12345678901234567890.10},"version":3,"correlation_id":"c","causation_id":"e"}`))
		if err != nil {
			t.Fatal(err)
		}
		if m.AggregateType != "invoice" || m.AggregateID.String() != invoice || m.EventType != "InvoicePaid" ||
			fmt.Sprintf("%s", m.Data) != `{"n":12345678901234567890.10}` || m.Version != 3 || m.CorrelationID != "c" || m.CausationID != "e" {
			t.Errorf("%+v", m)
		}
	})
	t.Run("takes type for event_type, and null for data", func(t *testing.T) {
		t.Parallel()
		m, err := parseLine([]byte(start + `,"type":"InvoicePaid","data":null}`))
		if err != nil || m.EventType != "InvoicePaid" || fmt.Sprintf("%s", m.Data) != "null" {
			t.Errorf("%+v, %v", m, err)
		}
	})
	for rest, want := range map[string]string{
		`{"aggregate_type":7}`:             "aggregate_type cannot be a number",
		`[1]`:                              "is not a JSON object",
		`null`:                             "is not a JSON object",
		`hello`:                            "is not a JSON object",
		"{\"type\":\"\xff\"}":              "is not valid UTF-8",
		start:                              "is not JSON: it ends too early",
		start + `,}`:                       "invalid character '}'",
		start + `,"type":"E","data":1} {}`: "has something behind its JSON object",
		start + `,"type":"E","data":1,"payload":{}}`:     `unknown field "payload"`,
		start + `,"type":"E","event_type":"F","data":1}`: "has a type and another event_type",
		start + `,"type":"E"}`:                           "data is missing (for an event without data, write null)",
		`{"aggregate_id":"7","type":"E","event_type":"F","version":0}`: "has a type and another event_type; data is missing (for an event without data, write null); " +
			`version 0 is less than 1; aggregate_id "7" is not a UUID`,
		start + `,"type":"E","data":1,"version":0}`:    "version 0 is less than 1",
		start + `,"type":"E","data":1,"version":1.5}`:  "version cannot be a number 1.5",
		`{"type":"E","data":1}`:                        `aggregate_id "" is not a UUID`,
		`{"type":"E","data":1,"aggregate_id":"seven"}`: `aggregate_id "seven" is not a UUID`,
	} {
		t.Run("refuses "+rest, func(t *testing.T) {
			t.Parallel()
			if _, err := parseLine([]byte(rest)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(eventLine(1)))
	f.Add([]byte(`{"type":"E","data":[1e400,"\ud800"],"version":-1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 {
			return // newBatches skips blank lines
		}
		m, err := parseLine(text)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("the error has several lines: %q", err)
		}
		if err == nil && m.Data == nil {
			t.Error("no data, and no error")
		}
	})
}

func eventLine(n int) string {
	return fmt.Sprintf(`{"aggregate_type":"invoice","aggregate_id":"018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091","type":"InvoicePaid","data":{"n":%d}}`+"\n", n)
}

// eventLines returns lines 1 to n.
func eventLines(n int) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(eventLine(i + 1))
	}
	return text.String()
}

func TestBatches(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, r io.Reader) (sizes []int, last *batch, err error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		b := newBatches(ctx, r)
		for {
			batch, err := b.next(ctx)
			if batch == nil || err != nil {
				return sizes, last, err
			}
			sizes, last = append(sizes, len(batch.messages)), batch
		}
	}
	t.Run("hold 500 lines", func(t *testing.T) {
		t.Parallel()
		sizes, _, err := read(t, strings.NewReader(eventLines(1203)))
		if err != nil || fmt.Sprint(sizes) != "[500 500 203]" {
			t.Errorf("%v, %v", sizes, err)
		}
	})
	t.Run("end with the last line where that fills one", func(t *testing.T) {
		t.Parallel()
		if sizes, _, err := read(t, strings.NewReader(eventLines(500))); err != nil || fmt.Sprint(sizes) != "[500]" {
			t.Errorf("%v, %v", sizes, err)
		}
	})
	t.Run("end earlier where lines are long", func(t *testing.T) {
		t.Parallel()
		long := strings.Replace(eventLine(1), `"data":`, `"data":`+strings.Repeat(" ", batchBytes/2), 1)
		if sizes, _, err := read(t, strings.NewReader(long+long+long)); err != nil || fmt.Sprint(sizes) != "[2 1]" {
			t.Errorf("%v, %v", sizes, err)
		}
	})
	t.Run("skip blank lines, but count them", func(t *testing.T) {
		t.Parallel()
		_, last, err := read(t, strings.NewReader("\n  \r\n"+eventLine(1)+"\n"+strings.TrimSpace(eventLine(2))))
		if err != nil || last == nil || fmt.Sprint(last.numbers) != "[3 5]" || last.last != 5 {
			t.Errorf("%+v, %v", last, err)
		}
	})
	t.Run("begin behind a byte order mark", func(t *testing.T) {
		t.Parallel()
		for _, start := range []string{"\ufeff", "\ufeff\n", "\ufeff \r\n"} {
			if sizes, _, err := read(t, strings.NewReader(start+eventLine(1))); err != nil || fmt.Sprint(sizes) != "[1]" {
				t.Errorf("%q: %v, %v", start, sizes, err)
			}
		}
		if _, _, err := read(t, strings.NewReader(eventLine(1)+"\ufeff"+eventLine(2))); err == nil || !strings.HasPrefix(err.Error(), "line 2: is not a JSON object") {
			t.Errorf("one in the middle: %v", err)
		}
	})
	t.Run("name another encoding", func(t *testing.T) {
		t.Parallel()
		if _, _, err := read(t, strings.NewReader("\xff\xfe{\x00}\x00\n\x00")); err == nil || err.Error() != "line 1: is not valid UTF-8" {
			t.Errorf("%v", err)
		}
	})
	t.Run("are none without lines", func(t *testing.T) {
		t.Parallel()
		if sizes, _, err := read(t, strings.NewReader("\n\n")); err != nil || sizes != nil {
			t.Errorf("%v, %v", sizes, err)
		}
	})
	t.Run("name a bad line", func(t *testing.T) {
		t.Parallel()
		if _, _, err := read(t, strings.NewReader("\n"+eventLine(1)+"{\n")); err == nil || !strings.HasPrefix(err.Error(), "line 3: ") {
			t.Errorf("%v", err)
		}
	})
	t.Run("end with an error of reading", func(t *testing.T) {
		t.Parallel()
		broken := io.MultiReader(strings.NewReader(eventLine(1)), brokenReader{})
		if _, _, err := read(t, broken); !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "read standard input after line 1: ") {
			t.Errorf("%v", err)
		}
	})
}

var errBroken = errors.New("broken")

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }
