package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/seed-9a365b49/outbox/metrics"
)

var promQL = parser.NewParser(parser.Options{})

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// metricNames are the names of all metrics, as a query can name them.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	described := make(chan *prometheus.Desc, 100)
	metrics.New().Describe(described)
	close(described)
	names := make(map[string]bool)
	for d := range described {
		names[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	if len(names) < 20 {
		t.Fatalf("only %d metrics", len(names))
	}
	return names
}

// named returns the metrics that an expression names, without the suffixes of histograms.
func named(t *testing.T, expr string) (names []string) {
	t.Helper()
	parsed, err := promQL.ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if v, ok := node.(*parser.VectorSelector); ok {
			for _, m := range v.LabelMatchers {
				if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
					names = append(names, strings.TrimSuffix(m.Value, "_bucket"))
				}
			}
		}
		return nil
	})
	return names
}

func TestAlerts(t *testing.T) {
	const path = "../prometheus/alerts.yaml"
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	known := metricNames(t)
	runbook := string(read(t, "../../docs/operations.md"))
	rules := 0
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			rules++
			found := named(t, rule.Expr)
			if len(found) == 0 {
				t.Errorf("%s names no metric", rule.Alert)
			}
			for _, name := range found {
				if !known[name] {
					t.Errorf("%s: there is no metric %s", rule.Alert, name)
				}
			}
			page, anchor, _ := strings.Cut(rule.Annotations["runbook"], "#")
			heading := "\n## " + strings.ReplaceAll(anchor, "-", " ") + "\n"
			if page != "docs/operations.md" || !strings.Contains(strings.ToLower(runbook), heading) {
				t.Errorf("%s: the runbook has no %q", rule.Alert, rule.Annotations["runbook"])
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" {
				t.Errorf("%s has no summary, description or severity", rule.Alert)
			}
		}
	}
	if rules < 10 {
		t.Errorf("%d rules", rules)
	}
}

// dashboard is what is checked of a dashboard of Grafana.
type dashboard struct {
	UID           string `json:"uid"`
	SchemaVersion int    `json:"schemaVersion"`
	Panels        []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	} `json:"panels"`
}

func TestDashboard(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal(read(t, "../grafana/outbox.json"), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.SchemaVersion < 39 || len(d.Panels) < 10 {
		t.Errorf("uid %q, schema version %d, %d panels", d.UID, d.SchemaVersion, len(d.Panels))
	}
	known := metricNames(t)
	shown := make(map[string]bool)
	ids := make(map[int]bool)
	variables := strings.NewReplacer("$job", "billing", "$__rate_interval", "5m")
	for i, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: id %d, %+v", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		for _, q := range d.Panels[:i] {
			if p.GridPos.X < q.GridPos.X+q.GridPos.W && q.GridPos.X < p.GridPos.X+p.GridPos.W &&
				p.GridPos.Y < q.GridPos.Y+q.GridPos.H && q.GridPos.Y < p.GridPos.Y+p.GridPos.H {
				t.Errorf("%q lies over %q", p.Title, q.Title)
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, name := range named(t, variables.Replace(target.Expr)) {
				if !known[name] {
					t.Errorf("%q: there is no metric %s", p.Title, name)
				}
				shown[name] = true
			}
		}
	}
	for name := range known {
		if !shown[name] && name != "outbox_sample_timestamp_seconds" { // for alerts
			t.Errorf("%s is not on the dashboard", name)
		}
	}
}

// runFlags are the flags of `outbox run`.
func runFlags(t *testing.T) []string {
	t.Helper()
	help := exec.CommandContext(t.Context(), "go", "run", "./cmd/outbox", "run", "--help")
	help.Dir = "../.."
	text, err := help.Output()
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`--[a-z-]+`).FindAllString(string(text), -1)
}

func checkFlags(t *testing.T, where, text string) {
	t.Helper()
	known := runFlags(t)
	used := regexp.MustCompile(`--[a-z-]+`).FindAllString(text, -1)
	if len(used) == 0 {
		t.Errorf("%s has no flags", where)
	}
	for _, flag := range used {
		if !slices.Contains(known, flag) {
			t.Errorf("%s has %s, which outbox run does not know", where, flag)
		}
	}
}

// checkVariables has every OUTBOX_ variable be that of a flag.
func checkVariables(t *testing.T, where, text string) {
	t.Helper()
	known := runFlags(t)
	for _, name := range regexp.MustCompile(`\bOUTBOX_[A-Z_]+`).FindAllString(text, -1) {
		flag := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "OUTBOX_")), "_", "-")
		if !slices.Contains(known, flag) {
			t.Errorf("%s has %s, and outbox run has no %s", where, name, flag)
		}
	}
}

func TestSystemd(t *testing.T) {
	unit := string(read(t, "../systemd/outbox.service"))
	start := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/outbox run (.*)$`).FindStringSubmatch(unit)
	if start == nil {
		t.Fatal("no ExecStart")
	}
	checkFlags(t, "outbox.service", start[1])
	checkVariables(t, "outbox.env", string(read(t, "../systemd/outbox.env")))
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze here")
	}
	copied := t.TempDir() + "/outbox.service"
	runnable := strings.ReplaceAll(unit, "/usr/local/bin/outbox", "/bin/true") // which is there
	if err := os.WriteFile(copied, []byte(runnable), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", copied).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// object is what is checked of an object of Kubernetes.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Spec       struct {
		Template struct {
			Spec struct {
				Containers []container `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

type container struct {
	Args  []string `yaml:"args"`
	Ports []struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	} `yaml:"ports"`
}

func TestKubernetes(t *testing.T) {
	text := read(t, "../kubernetes/outbox.yaml")
	checkVariables(t, "outbox.yaml", string(text))
	kinds := make(map[string]object)
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds[o.APIVersion+" "+o.Kind] = o
	}
	for _, kind := range []string{"batch/v1 Job", "apps/v1 Deployment", "policy/v1 PodDisruptionBudget"} {
		if _, there := kinds[kind]; !there {
			t.Errorf("there is no %s", kind)
		}
	}
	worker := kinds["apps/v1 Deployment"].Spec.Template.Spec.Containers[0]
	checkFlags(t, "the Deployment", strings.Join(worker.Args, " "))
	if !slices.Contains(worker.Args, "0.0.0.0:9090") || worker.Ports[0].ContainerPort != 9090 {
		t.Error("the probes cannot reach it")
	}
	if !bytes.Contains(text, []byte("livenessProbe:\n            httpGet: {path: /livez, port: "+worker.Ports[0].Name)) ||
		!bytes.Contains(text, []byte("readinessProbe:\n            httpGet: {path: /readyz, port: "+worker.Ports[0].Name)) {
		t.Error("a probe asks for something else")
	}
}
