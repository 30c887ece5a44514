package report_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/measure/report"
)

func summary(p50 float64) measure.Summary {
	return measure.Summary{
		Count: 1000, P50: p50, P95: 2 * p50, P99: 3 * p50, P999: 4 * p50, Max: 5 * p50,
		Curve: []measure.Point{{Percentile: 0, Micros: p50 / 2}, {Percentile: 50, Micros: p50}, {Percentile: 99, Micros: 3 * p50}},
	}
}

func example() report.Report {
	due := summary(1500)
	return report.Report{
		Command: "outbox bench <&>",
		Results: measure.Results{
			Environment: measure.Environment{
				Time: time.Date(2026, 12, 2, 9, 0, 0, 0, time.UTC), Outbox: "v1.2.3", Go: "go1.26", Machine: "a|b", Cores: 2, MemoryGiB: 24,
				Postgres: "15.18", Settings: []measure.Setting{{Name: "fsync", Value: "on"}}, RoundTrip: 50,
			},
			Latency: []measure.Latency{
				{Name: "idle", Worker: measure.LatencyArm{FromCommit: summary(420)}, Floor: measure.LatencyArm{FromCommit: summary(400)}},
				{Name: "steady", Rate: 1000, Worker: measure.LatencyArm{FromCommit: summary(1), FromDue: &due, Unsent: 7}, Floor: measure.LatencyArm{FromDue: &due}},
			},
			Drain: []measure.Drained{
				{Events: 10_000, Aggregates: 100, Bytes: 20, Worker: 45_000, Floor: 50_000},
				{Events: 1_000_000, Aggregates: 100, Bytes: 20, Worker: 47_500, Floor: 50_000},
				{Events: 10_000, Aggregates: 100, Bytes: 20, Published: 1_000_000, Hindrance: measure.HeldSnapshot, Worker: 30_000, Floor: 50_000, Free: 40_000},
			},
			Options: []measure.OptionDrained{{Option: "audit", Events: 100_000, Bytes: 20, With: 29_000, Without: 50_000}},
			Publish: []measure.Published{{
				Sessions: 16, Off: measure.PublishArm{PerSecond: 2000}, Always: measure.PublishArm{PerSecond: 1000},
				Gated: measure.PublishArm{PerSecond: 1900, Commit: summary(5000)},
			}},
			Batch:  []measure.Batched{{Size: 100, Batch: 9000, Floor: 10_000}},
			Idle:   &measure.Idled{Queries: 2.04, CPU: 0.0012},
			Memory: []measure.Memory{{Events: 1_000_000, Aggregates: 1, Blocked: 31, Peak: 62}},
		},
	}
}

// answers are what every form of the example must say.
var answers = []string{
	"420 µs", "1.05 ×", "1,000 events/s were more than the server took: it could not commit 7 for the worker in time.", "1.50 ms", // not from the commit
	"0.90 ×", "0.95 ×", "1,000,000, held snapshot", "0.75 ×", "audit", "0.58 ×",
	"1.90 ×", "20.0 ms", "2.0", "0.12 %", "62", "PostgreSQL", "15.18", "fsync = on", "24 GiB", "v1.2.3", "2 December 2026",
	"With 16 sessions, publishing through the gate is 0.95 × as fast as without notifications, and 1.90 × as fast as with a NOTIFY in every transaction.",
}

func TestText(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := example().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	says(t, b.String(), answers...)
	for line := range strings.Lines(b.String()) {
		if strings.TrimRight(line, " \n")+"\n" != line && line != "\n" {
			t.Errorf("ends with spaces: %q", line)
		}
	}
}

func TestTextThatIsNotTaken(t *testing.T) {
	t.Parallel()
	if err := example().WriteText(&full{room: 600}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}

var errFull = errors.New("full")

type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := example().WriteMarkdown(folder); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	says(t, string(text), append(answers, "outbox bench <&>", `a\|b`)...)
	for _, name := range []string{"latency", "drain", "publish"} {
		says(t, string(text), "(results/"+name+".svg)")
		svg, err := os.ReadFile(filepath.Join(folder, "results", name+".svg"))
		if err != nil || !bytes.HasPrefix(svg, []byte("<svg ")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHTML(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := example().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	says(t, b.String(), append(answers, "outbox bench &lt;&amp;&gt;", "color-scheme:light dark", "prefers-color-scheme:dark")...)
	if n := strings.Count(b.String(), "<svg "); n != 3 {
		t.Errorf("%d charts", n)
	}
	for _, foreign := range []string{"src=", "href=", "@import", "url(", "<script", "<link"} {
		if strings.Contains(b.String(), foreign) {
			t.Errorf("needs something from elsewhere: %s", foreign)
		}
	}
}

func TestPartOfTheQuestions(t *testing.T) {
	t.Parallel()
	r := report.Report{Results: measure.Results{Idle: &measure.Idled{Queries: 1, CPU: -1}}}
	var text, html strings.Builder
	if err := errors.Join(r.WriteText(&text), r.WriteHTML(&html)); err != nil {
		t.Fatal(err)
	}
	says(t, text.String(), "not known here")
	for _, s := range []string{text.String(), html.String()} {
		if strings.Contains(strings.ToLower(s), "what publishers pay") || strings.Contains(s, "<svg") {
			t.Errorf("shows what was not measured: %s", s)
		}
	}
}

func says(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("does not say %q: %s", w, text)
		}
	}
}
