package check

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/annotations"
	"go.yaml.in/yaml/v3"
)

const alertsFile = "../prometheus/alerts.yaml"

var promQL = parser.NewParser(parser.Options{})

// rules are those of alerts.yaml, as Prometheus reads them.
func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsFile, false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil {
		t.FailNow()
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// TestAlerts has each alert say how bad it is, since when, and what to do.
func TestAlerts(t *testing.T) {
	t.Parallel()
	runbook, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var anchors []string
	for line := range strings.Lines(string(runbook)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			anchors = append(anchors, strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-"))
		}
	}
	source, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	if alerts, waits := bytes.Count(source, []byte("- alert:")), bytes.Count(source, []byte("\n        for:")); alerts != waits {
		t.Errorf("%d alerts have %d for: each says after how long it is one, if only 0m", alerts, waits)
	}
	seen := make(map[string]bool)
	for _, r := range rules(t) {
		if seen[r.Alert] {
			t.Errorf("%s: there are two", r.Alert)
		}
		seen[r.Alert] = true
		if !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", r.Alert)
		}
		anchor, ok := strings.CutPrefix(r.Annotations["runbook_url"], "docs/operations.md#")
		if !ok || !slices.Contains(anchors, anchor) {
			t.Errorf("%s: the runbook has no %q; it has %q", r.Alert, r.Annotations["runbook_url"], anchors)
		}
		description := r.Annotations["description"]
		command := description[strings.LastIndex(description, ": ")+1:] // which ends it
		command = strings.TrimSpace(command)
		name, rest, _ := strings.Cut(command, " ")
		switch {
		case !slices.Contains([]string{"outbox", "curl", "psql"}, name):
			t.Errorf("%s: the description names no command: %q", r.Alert, command)
		case name == "outbox":
			mustKnow(t, strings.Fields(rest))
		}
	}
}

// unitTests is the part of promtool's form of unit tests that alerts_test.yaml uses.
type unitTests struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []struct {
		Name        string
		Interval    model.Duration
		InputSeries []struct{ Series, Values string } `yaml:"input_series"`
		Alerts      []struct {
			EvalTime  model.Duration `yaml:"eval_time"`
			Alertname string
			Expected  []struct {
				Labels      map[string]string `yaml:"exp_labels"`
				Annotations map[string]string `yaml:"exp_annotations"`
			} `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	}
}

// TestUnitTests runs alerts_test.yaml. promtool, which does the same, links the clients of every cloud, and Prometheus's package of
// rules adds two minutes of processor time to the three that the rest takes to compile. The engine that evaluates is linked by the
// reader of rules anyway. What it leaves to do is here: to hold samples, and to count how long an alert has been one.
func TestUnitTests(t *testing.T) {
	t.Parallel()
	const file = "../prometheus/alerts_test.yaml"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tests unitTests
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&tests); err != nil {
		t.Fatal(err)
	}
	if len(tests.RuleFiles) != 1 || filepath.Join(filepath.Dir(file), tests.RuleFiles[0]) != alertsFile {
		t.Fatalf("rule_files: %q", tests.RuleFiles)
	}
	all := rules(t)
	fired := make(map[string]bool)
	for _, tt := range tests.Tests {
		t.Run(tt.Name, func(t *testing.T) {
			var series samples
			for _, s := range tt.InputSeries {
				series.load(t, s.Series+" "+s.Values, time.Duration(tt.Interval))
			}
			for _, want := range tt.Alerts {
				i := slices.IndexFunc(all, func(r rulefmt.Rule) bool { return r.Alert == want.Alertname })
				if i < 0 {
					t.Errorf("there is no alert %s", want.Alertname)
					continue
				}
				var expected []string
				for _, e := range want.Expected {
					fired[want.Alertname] = true
					expected = append(expected, show(e.Labels, e.Annotations))
				}
				slices.Sort(expected)
				if got := firing(t, all[i], &series, time.Duration(want.EvalTime), time.Duration(tests.EvaluationInterval)); !slices.Equal(got, expected) {
					t.Errorf("%s at %s:\ngot  %s\nwant %s", want.Alertname, want.EvalTime, strings.Join(got, "\n     "), strings.Join(expected, "\n     "))
				}
			}
		})
	}
	for _, r := range all {
		if !fired[r.Alert] {
			t.Errorf("no test has %s fire", r.Alert)
		}
	}
}

func show(labels, annotations map[string]string) string {
	return fmt.Sprintf("labels %q annotations %q", labels, annotations) // fmt sorts the keys
}

// firing evaluates a rule at each interval until a time, and returns which alerts are firing then.
func firing(t *testing.T, rule rulefmt.Rule, series *samples, until, interval time.Duration) []string {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: promQL})
	defer engine.Close()
	active := make(map[string]time.Duration)
	var now []string
	for at := time.Duration(0); at <= until; at += interval {
		query, err := engine.NewInstantQuery(t.Context(), series, nil, rule.Expr, time.Unix(0, 0).Add(at))
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		now = nil
		still := make(map[string]time.Duration)
		for _, s := range vector {
			found := s.Metric.Map()
			delete(found, model.MetricNameLabel)
			key := s.Metric.String()
			since, ok := active[key]
			if !ok {
				since = at
			}
			still[key] = since
			if at-since < time.Duration(rule.For) {
				continue
			}
			expand := func(texts map[string]string) map[string]string {
				expanded := make(map[string]string)
				for name, text := range texts {
					data := template.AlertTemplateData(found, nil, "", s)
					const head = "{{$labels := .Labels}}{{$value := .Value}}"
					e := template.NewTemplateExpander(t.Context(), head+text, rule.Alert, data, model.TimeFromUnixNano(int64(at)), nil, nil, []string{"missingkey=error"})
					var err error
					if expanded[name], err = e.Expand(); err != nil {
						t.Errorf("%s: %s: %v", rule.Alert, name, err)
					}
				}
				return expanded
			}
			labels := maps.Clone(found)
			maps.Copy(labels, expand(rule.Labels))
			now = append(now, show(labels, expand(rule.Annotations)))
		}
		active = still
		query.Close()
	}
	slices.Sort(now)
	return now
}

// samples is a [storage.Queryable] of a few series.
type samples []promql.Series

// load adds a series in the notation of unit tests: a{b="c"} 0+1x10 _ stale.
func (s *samples) load(t *testing.T, line string, interval time.Duration) {
	t.Helper()
	metric, values, err := promQL.ParseSeriesDesc(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	series := promql.Series{Metric: metric}
	for i, v := range values {
		if !v.Omitted {
			series.Floats = append(series.Floats, promql.FPoint{T: int64(i) * interval.Milliseconds(), F: v.Value})
		}
	}
	*s = append(*s, series)
}

func (s *samples) Querier(mint, maxt int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &seriesSet{}
		for _, series := range *s {
			if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(series.Metric.Get(m.Name)) }) {
				continue
			}
			part := promql.Series{Metric: series.Metric}
			for _, p := range series.Floats {
				if p.T >= mint && p.T <= maxt {
					part.Floats = append(part.Floats, p)
				}
			}
			set.series = append(set.series, part)
		}
		slices.SortFunc(set.series, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
		return set
	}}, nil
}

// seriesSet walks over series.
type seriesSet struct {
	series []promql.Series
	next   int
}

func (s *seriesSet) Next() bool                        { s.next++; return s.next <= len(s.series) }
func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.series[s.next-1]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
