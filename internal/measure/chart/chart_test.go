package chart_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/measure/chart"
)

func TestSVG(t *testing.T) {
	t.Parallel()
	lines := chart.Lines{
		Title: "Rates & <ratios>", Description: "events", X: chart.Axis{Label: "backlog", Log: true}, Y: chart.Axis{Label: "events a second"},
		Series: []chart.Series{
			{Name: "outbox", Points: []chart.Point{{10, 5}, {1000, 7}}},
			{Name: "floor", Points: []chart.Point{{10, 6}, {100, math.NaN()}, {1000, 8}}},
		},
	}
	svg := lines.SVG()

	t.Run("is well formed, whatever the texts", func(t *testing.T) {
		t.Parallel()
		wellFormed(t, svg)
		if !strings.Contains(svg, "Rates &amp; &lt;ratios&gt;") {
			t.Error("the title is not escaped")
		}
	})
	t.Run("needs nothing from elsewhere", func(t *testing.T) {
		t.Parallel()
		for _, foreign := range []string{"href", "url(", "@import", "<script", "<image"} {
			if strings.Contains(svg, foreign) {
				t.Errorf("has %s", foreign)
			}
		}
		if strings.Count(svg, "http") != 1 {
			t.Error("has an address besides the name of the format")
		}
	})
	t.Run("follows the reader's scheme", func(t *testing.T) {
		t.Parallel()
		if !strings.Contains(svg, "prefers-color-scheme:dark") {
			t.Error("is light for everybody")
		}
	})
	t.Run("marks every value and leaves out what is none", func(t *testing.T) {
		t.Parallel()
		if n := strings.Count(svg, "<circle"); n != 4+2 { // and two in the legend
			t.Errorf("%d marks", n)
		}
		if strings.Contains(svg, "NaN") {
			t.Error("has a NaN")
		}
	})
	t.Run("has a larger value further up, and more to the right", func(t *testing.T) {
		t.Parallel()
		if !strings.Contains(svg, `d="M84.0 `) || !strings.Contains(svg, "L736.0 ") {
			t.Errorf("the lines do not reach from side to side: %s", svg)
		}
	})
}

func TestSVGOfLittle(t *testing.T) {
	t.Parallel()
	for name, series := range map[string][]chart.Series{
		"no line":       nil,
		"no point":      {{Name: "outbox"}},
		"one point":     {{Name: "outbox", Points: []chart.Point{{100, 3}}}},
		"zero":          {{Name: "outbox", Points: []chart.Point{{0, 0}}}},
		"equal points":  {{Name: "outbox", Points: []chart.Point{{1, 3}, {2, 3}}}},
		"not a number":  {{Name: "outbox", Points: []chart.Point{{1, math.NaN()}, {2, math.Inf(1)}}}},
		"more than six": {{}, {}, {}, {}, {}, {}, {Name: "7", Points: []chart.Point{{1, 3}}}},
	} {
		for axis, log := range map[string]bool{"linear": false, "logarithmic": true} {
			t.Run(name+", "+axis, func(t *testing.T) {
				t.Parallel()
				svg := chart.Lines{Title: name, X: chart.Axis{Log: log}, Y: chart.Axis{Log: log}, Series: series}.SVG()
				wellFormed(t, svg)
				if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
					t.Errorf("%s", svg)
				}
			})
		}
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
}
