package sink

import (
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2025, 3, 9, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name, value, date string
		want              time.Duration // 0: no wish
	}{
		{name: "absent", value: ""},
		{name: "seconds", value: "120", want: 2 * time.Minute},
		{name: "seconds with space around", value: " 5 ", want: 5 * time.Second},
		{name: "seconds with leading zeros", value: "007", want: 7 * time.Second},
		{name: "zero seconds are no wish", value: "0"},
		{name: "more than a day is a day", value: "86401", want: 24 * time.Hour},
		{name: "more digits than an integer has is a day", value: strings.Repeat("9", 40), want: 24 * time.Hour},
		{name: "a negative number is no wish", value: "-1"},
		{name: "a fraction is no wish", value: "1.5"},
		{name: "a word is no wish", value: "later"},
		{name: "a date", value: "Sun, 09 Mar 2025 12:01:30 GMT", want: 90 * time.Second},
		{name: "a date in the RFC 850 form", value: "Sunday, 09-Mar-25 12:01:30 GMT", want: 90 * time.Second},
		{name: "a date in the asctime form", value: "Sun Mar  9 12:01:30 2025", want: 90 * time.Second},
		{name: "a date beyond a day is a day", value: "Fri, 31 Dec 2049 23:59:59 GMT", want: 24 * time.Hour},
		{name: "a date beyond what a duration holds is a day", value: "Fri, 31 Dec 9999 23:59:59 GMT", want: 24 * time.Hour},
		{name: "a date that has passed is no wish", value: "Sun, 09 Mar 2025 11:59:59 GMT"},
		{
			name: "a date is compared with the receiver's clock", want: 30 * time.Second,
			value: "Sun, 09 Mar 2025 15:00:30 GMT", date: "Sun, 09 Mar 2025 15:00:00 GMT",
		},
		{
			name: "a Date that is none falls back to our clock", want: 30 * time.Second,
			value: "Sun, 09 Mar 2025 12:00:30 GMT", date: "noon",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			if tt.value != "" {
				header.Set("Retry-After", tt.value)
			}
			if tt.date != "" {
				header.Set("Date", tt.date)
			}
			got, ok := retryAfter(header, now)
			if ok != (tt.want > 0) || (ok && got != tt.want) {
				t.Errorf("got %s, %v; want %s", got, ok, tt.want)
			}
		})
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()

	t.Run("examples", func(t *testing.T) {
		t.Parallel()
		for text, want := range map[string]string{
			"":                                 "",
			" \r\n\t ":                         "",
			"no such account":                  "no such account",
			"<h1>\n  Bad   Gateway\n</h1>\n":   "<h1> Bad Gateway </h1>",
			"a\x00b\x1b[31mred\u2028c\u202edc": "a b [31mred c dc",
			"half \xff\xfe":                    "half \ufffd",
			strings.Repeat("x", maxReason):     strings.Repeat("x", maxReason),
			strings.Repeat("x", maxReason+1):   strings.Repeat("x", maxReason-3) + "…",
			strings.Repeat("x", maxReason-4) + "결제결제": strings.Repeat("x", maxReason-4) + "…",
		} {
			if got := oneLine([]byte(text)); got != want {
				t.Errorf("oneLine(%q) = %q, want %q", text, got, want)
			}
		}
	})

	t.Run("whatever the receiver sends", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			text := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) })).Draw(t, "text")
			got := oneLine(append(text, text...))
			if len(got) > maxReason || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n\r\t\u2028\u2029") {
				t.Fatalf("%q", got)
			}
		})
	})
}
