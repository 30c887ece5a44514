package spans

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
	"pgregory.net/rapid"
)

const valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, traceParent string
		valid             bool
	}{
		{"sampled", valid, true},
		{"not sampled", strings.TrimSuffix(valid, "1") + "0", true},
		{"of a later version, with more behind it", "cc" + valid[2:] + "-what-will-be", true},
		{"nothing", "", false},
		{"a word", "trace", false},
		{"without flags", valid[:len(valid)-3], false},
		{"cut in the middle", valid[:30], false},
		{"more behind it", valid + "-00", false},
		{"white space around it", " " + valid, false},
		{"upper case", strings.ToUpper(valid), false},
		{"no hexadecimal", strings.Replace(valid, "b", "g", 1), false},
		{"other separators", strings.ReplaceAll(valid, "-", "_"), false},
		{"version ff", "ff" + valid[2:], false},
		{"trace id of zeros", "00-" + strings.Repeat("0", 32) + valid[35:], false},
		{"span id of zeros", valid[:36] + strings.Repeat("0", 16) + "-01", false},
		{"NUL", valid[:54] + "\x00", false},
		{"very long", strings.Repeat(valid, 1e5), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sc := Parse(tt.traceParent, "")
			if sc.IsValid() != tt.valid || sc.IsRemote() != tt.valid {
				t.Errorf("valid %v, remote %v", sc.IsValid(), sc.IsRemote())
			}
			if tt.valid && sc.TraceID().String() != "4bf92f3577b34da6a3ce929d0e0e4736" {
				t.Errorf("trace id %s", sc.TraceID())
			}
		})
	}
}

func TestParseTraceState(t *testing.T) {
	t.Parallel()
	if got := Parse(valid, "a=1,b=2").TraceState().String(); got != "a=1,b=2" {
		t.Errorf("%q", got)
	}
	for _, malformed := range []string{"a", "a=1,a=2", "ä=1", strings.Repeat("a=1,", 40)} {
		if sc := Parse(valid, malformed); !sc.IsValid() || sc.TraceState().Len() != 0 {
			t.Errorf("%q: valid %v, tracestate %q", malformed, sc.IsValid(), sc.TraceState())
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	if parent, state := Format(trace.SpanContext{}); parent != "" || state != "" {
		t.Errorf("no span is %q, %q", parent, state)
	}
	rapid.Check(t, func(t *rapid.T) {
		random := trace.NewSpanContext(trace.SpanContextConfig{
			TraceID:    [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trace id")),
			SpanID:     [8]byte(rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "span id")),
			TraceFlags: trace.TraceFlags(rapid.IntRange(0, 3).Draw(t, "flags")),
			Remote:     true,
		})
		if got := Parse(Format(random)); random.IsValid() && !got.Equal(random) || got.IsValid() != random.IsValid() {
			t.Fatalf("%v became %v", random, got)
		}
	})
}

// TestParseNeverPanics has whatever a foreign producer may have stored as a traceparent, mostly near to a right one.
func TestParseNeverPanics(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Custom(func(t *rapid.T) string {
			at := rapid.IntRange(0, len(valid)-1).Draw(t, "at")
			return valid[:at] + rapid.StringN(0, 3, -1).Draw(t, "put in") + valid[rapid.IntRange(at, len(valid)).Draw(t, "to"):]
		})).Draw(t, "traceparent")
		sc := Parse(text, rapid.String().Draw(t, "tracestate"))
		if sc.IsValid() && len(text) < len(valid) {
			t.Fatalf("%q became %v", text, sc)
		}
	})
}
