package sink

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()

	t.Run("stdout writes to the given stream", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		s, err := Parse("stdout", Options{Source: source, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Handle(t.Context(), newEvent(1)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), `"source":"/outbox/billing"`) {
			t.Errorf("wrote %q", out.String())
		}
	})

	t.Run("discard takes everything and needs no source", func(t *testing.T) {
		t.Parallel()
		s, err := Parse("discard", Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Handle(context.Background(), newEvent(1)); err != nil {
			t.Error(err)
		}
	})

	t.Run("names are those of the flag, addresses are without credentials", func(t *testing.T) {
		t.Parallel()
		for spec, want := range map[string]string{
			"stdout":                       "stdout",
			"discard":                      "discard",
			"http://localhost:8080/events": "http://localhost:8080/events",
			"HTTPS://ann:s3cret@example.com/a%2Fb?k=v#f": "https://example.com/a%2Fb",
		} {
			s, err := Parse(spec, Options{Source: source})
			if err != nil {
				t.Errorf("Parse(%q): %v", spec, err)
			} else if s.String() != want {
				t.Errorf("Parse(%q) is called %q, want %q", spec, s, want)
			}
		}
	})

	t.Run("anything else is an error of one line that lists the choices", func(t *testing.T) {
		t.Parallel()
		for _, spec := range []string{"", "stdin", "Stdout", " stdout", "kafka://broker", "example.com/hook", "a\nb"} {
			s, err := Parse(spec, Options{Source: source})
			if err == nil {
				t.Errorf("Parse(%q) = %v", spec, s)
				continue
			}
			if text := err.Error(); !strings.Contains(text, "choose stdout, discard, or an http:// or https:// address") ||
				strings.Contains(text, "\n") {
				t.Errorf("Parse(%q): %v", spec, err)
			}
		}
	})

	t.Run("an address given by mistake is not repeated", func(t *testing.T) {
		t.Parallel()
		_, err := Parse("postgres://ann:s3cret@db/billing", Options{Source: source})
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), `"postgres://…"`) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("an invalid source or address yields no sink", func(t *testing.T) {
		t.Parallel()
		for spec, opts := range map[string]Options{
			"stdout":             {},
			"http://example.com": {},
			"http://":            {Source: source},
			"http:example.com":   {Source: source},
		} {
			if s, err := Parse(spec, opts); err == nil || s != nil {
				t.Errorf("Parse(%q) = %v, %v", spec, s, err)
			}
		}
	})
}
