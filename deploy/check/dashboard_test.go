package check

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/seed-9a365b49/outbox/metrics"
)

// notShown are the metrics that the dashboard leaves out.
var notShown []string

// panel is what matters here of one of Grafana's.
type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, RefID string }
}

type dashboard struct {
	UID           string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
}

// interval replaces Grafana's variables by what it may put there.
var interval = strings.NewReplacer("$__rate_interval", "1m", "$namespace", ".*", "$job", "billing")

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	content, err := os.ReadFile("../grafana/outbox.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.UID != "outbox" || d.SchemaVersion < 39 { // 39 is that of Grafana 11
		t.Errorf("uid %q, schemaVersion %d", d.UID, d.SchemaVersion)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "namespace", "job"}; !slices.Equal(variables, want) {
		t.Errorf("variables %q, want %q", variables, want)
	}
	ids := make(map[int]bool)
	for i, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: there are two panels with the id %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, o := range d.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies over %s", p.Title, o.Title)
			}
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s is wider than the screen", p.Title)
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d, %q, has no title, description or query", p.ID, p.Title)
		}
		for _, target := range p.Targets {
			expr := interval.Replace(target.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: an unknown variable: %s", p.Title, target.Expr)
			}
			if _, err := promQL.ParseExpr(expr); err != nil {
				t.Errorf("%s: %s: %v", p.Title, target.Expr, err)
			}
			if selectors, filtered := strings.Count(target.Expr, "{"), strings.Count(target.Expr, `{namespace=~"$namespace", job="$job"`); selectors != filtered {
				t.Errorf("%s: a query for all jobs at once: %s", p.Title, target.Expr)
			}
		}
	}
}

// described are the metrics of a worker, without the suffixes of histograms.
func described(t *testing.T) []string {
	t.Helper()
	to := make(chan *prometheus.Desc, 1000)
	metrics.New().Describe(to)
	close(to)
	var names []string
	for d := range to {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String()) // Desc has no other way to tell
		if name == nil {
			t.Fatalf("no name in %s", d)
		}
		names = append(names, name[1])
	}
	if len(names) < 20 {
		t.Fatalf("%d metrics", len(names))
	}
	return names
}

// metricsOf are the metrics that an expression asks for.
func metricsOf(t *testing.T, expr string) []string {
	t.Helper()
	parsed, err := promQL.ParseExpr(interval.Replace(expr))
	if err != nil {
		return nil // another test says so
	}
	var names []string
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			names = append(names, s.Name)
		}
		return nil
	})
	return names
}

// TestMetrics has alerts and the dashboard ask for metrics that there are, and the dashboard show all of them.
func TestMetrics(t *testing.T) {
	t.Parallel()
	known := described(t)
	check := func(where, name string) string {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && slices.Contains(known, base) {
				name = base
			}
		}
		if name != "up" && !slices.Contains(known, name) { // up is Prometheus's own
			t.Errorf("%s: there is no metric %q", where, name)
		}
		return name
	}
	for _, r := range rules(t) {
		for _, name := range metricsOf(t, r.Expr) {
			check(r.Alert, name)
		}
	}
	shown := make(map[string]bool)
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			for _, name := range metricsOf(t, target.Expr) {
				shown[check(p.Title, name)] = true
			}
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		selector := regexp.MustCompile(`^label_values\((.*), \w+\)$`).FindStringSubmatch(v.Definition)
		if selector == nil {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
			continue
		}
		for _, name := range metricsOf(t, selector[1]) {
			check("variable "+v.Name, name)
		}
	}
	for _, name := range known {
		switch excepted := slices.Contains(notShown, name); {
		case !shown[name] && !excepted:
			t.Errorf("the dashboard does not show %s", name)
		case shown[name] && excepted:
			t.Errorf("the dashboard shows %s, which is no exception then", name)
		}
	}
}
