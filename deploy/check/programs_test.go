package check

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// afterGrace is what an orderly shutdown can take once --shutdown-grace is over: 5 s for handlers to notice, 10 s to mark what was delivered, 4 s for requests
// and traces.
const afterGrace = 20 * time.Second

// settings are the lines name=value of a unit or an environment file, by name.
func settings(t *testing.T, file string) map[string][]string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]string)
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "# ") {
			name = strings.TrimPrefix(name, "#") // an example that is switched off
			found[name] = append(found[name], value)
		}
	}
	return found
}

// graceOfRun is the default of --shutdown-grace.
func graceOfRun(t *testing.T) time.Duration {
	t.Helper()
	found := regexp.MustCompile(`--shutdown-grace duration.*\(default (\w+)\)`).FindStringSubmatch(helpOf(t, []string{"run"}))
	if found == nil {
		t.Fatal("outbox run --help names no default of --shutdown-grace")
	}
	grace, err := time.ParseDuration(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return grace
}

func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	const file = "../systemd/outbox.service"
	unit := settings(t, file)
	start := unit["ExecStart"]
	if len(start) != 1 {
		t.Fatalf("ExecStart %q", start)
	}
	arguments := strings.Fields(start[0])
	if filepath.Base(arguments[0]) != "outbox" {
		t.Errorf("ExecStart=%s", start[0])
	}
	mustKnow(t, arguments[1:])
	if seconds, err := strconv.Atoi(unit["TimeoutStopSec"][0]); err != nil || time.Duration(seconds)*time.Second < graceOfRun(t)+afterGrace {
		t.Errorf("TimeoutStopSec=%s, and --shutdown-grace is %s", unit["TimeoutStopSec"], graceOfRun(t))
	}
	if !slices.Equal(unit["RestartPreventExitStatus"], []string{"2"}) {
		t.Errorf("RestartPreventExitStatus=%s: wrong usage is exit code 2", unit["RestartPreventExitStatus"])
	}
	for name := range settings(t, "../systemd/outbox.env") {
		if flag, ok := strings.CutPrefix(name, "OUTBOX_"); ok {
			mustKnow(t, []string{"run", "--" + strings.ReplaceAll(strings.ToLower(flag), "_", "-")})
		} else if !strings.HasPrefix(name, "OTEL_") {
			t.Errorf("outbox.env: %s is no variable of the program", name)
		}
	}
}

// TestSystemdVerifies asks systemd itself, with a program at the path of ExecStart that is there.
func TestSystemdVerifies(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze")
	}
	content, err := os.ReadFile("../systemd/outbox.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "outbox.service")
	if err := os.WriteFile(unit, bytes.ReplaceAll(content, []byte("/usr/local/bin/outbox"), []byte(binary)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", unit).CombinedOutput()
	// It warns of the machine's other units too.
	if err != nil || bytes.Contains(out, []byte("outbox.service")) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// manifest is what matters here of an object of Kubernetes.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string `yaml:"stringData"`
	Spec     struct {
		Replicas int
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []container
			}
		}
	}
}

type container struct {
	Args []string
	Env  []struct {
		Name      string
		ValueFrom struct {
			Secret struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name string
		Port int `yaml:"containerPort"`
	}
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
}

type probe struct {
	Get struct{ Path, Port string } `yaml:"httpGet"`
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../kubernetes/outbox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	byKind := make(map[string]manifest)
	for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var m manifest
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if m.Kind != "" {
			byKind[m.Kind] = m
		}
	}
	if kinds, want := slices.Sorted(maps.Keys(byKind)), []string{"Deployment", "Job", "PodDisruptionBudget", "Secret"}; !slices.Equal(kinds, want) {
		t.Fatalf("kinds %q, want %q", kinds, want)
	}
	worker := byKind["Deployment"].Spec
	for _, kind := range []string{"Deployment", "Job"} {
		for _, c := range byKind[kind].Spec.Template.Spec.Containers {
			mustKnow(t, c.Args)
			for _, e := range c.Env {
				s := e.ValueFrom.Secret
				if s.Name != byKind["Secret"].Metadata.Name || byKind["Secret"].Data[s.Key] == "" {
					t.Errorf("%s: %s is in no secret: %+v", kind, e.Name, s)
				}
				flag := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(e.Name, "OUTBOX_")), "_", "-")
				mustKnow(t, append(slices.Clone(c.Args), flag))
			}
		}
	}
	for _, selector := range []map[string]string{worker.Selector.MatchLabels, byKind["PodDisruptionBudget"].Spec.Selector.MatchLabels} {
		if !maps.Equal(selector, worker.Template.Metadata.Labels) {
			t.Errorf("%q does not select the workers, %q", selector, worker.Template.Metadata.Labels)
		}
	}
	if maps.Equal(byKind["Job"].Spec.Template.Metadata.Labels, worker.Template.Metadata.Labels) {
		t.Error("the job's pod would count as a worker")
	}
	if worker.Replicas < 2 {
		t.Error("no standby")
	}
	c := worker.Template.Spec.Containers[0]
	argument := func(flag string) string {
		for _, a := range c.Args {
			if value, ok := strings.CutPrefix(a, flag+"="); ok {
				return value
			}
		}
		t.Errorf("no %s in %q", flag, c.Args)
		return ""
	}
	if grace, err := time.ParseDuration(argument("--shutdown-grace")); err != nil || time.Duration(worker.Template.Spec.Grace)*time.Second < grace+afterGrace {
		t.Errorf("terminationGracePeriodSeconds %d, --shutdown-grace %s", worker.Template.Spec.Grace, grace)
	}
	port := strconv.Itoa(c.Ports[0].Port)
	if address := argument("--admin-addr"); address != "0.0.0.0:"+port {
		t.Errorf("--admin-addr=%s, and the port is %s", address, port)
	}
	if got := worker.Template.Metadata.Annotations["prometheus.io/port"]; got != port {
		t.Errorf("Prometheus asks port %s of %s", got, port)
	}
	endpoints, err := os.ReadFile("../../cmd/outbox/endpoints.go")
	if err != nil {
		t.Fatal(err)
	}
	for path, where := range map[string]string{
		c.Liveness.Get.Path: "/livez", c.Readiness.Get.Path: "/readyz", worker.Template.Metadata.Annotations["prometheus.io/path"]: "/metrics",
	} {
		if path != where || !bytes.Contains(endpoints, []byte(`"GET `+path+`"`)) {
			t.Errorf("%q instead of %s, or it is not served", path, where)
		}
	}
	if c.Liveness.Get.Port != c.Ports[0].Name || c.Readiness.Get.Port != c.Ports[0].Name {
		t.Errorf("the probes ask %q and %q, not %q", c.Liveness.Get.Port, c.Readiness.Get.Port, c.Ports[0].Name)
	}
}

// TestImage has the program of the Dockerfile need nothing of the image: no libraries, no zones.
func TestImage(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "linux" {
		file, err := elf.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for _, p := range file.Progs {
			if p.Type == elf.PT_INTERP {
				t.Error("it is linked dynamically, and scratch has no loader")
			}
		}
	}
	// A closed port: a zone that is not known is wrong usage, exit code 2, before the database is asked.
	for zone, want := range map[string]int{"Europe/Berlin": 1, "Europe/Nowhere": 2} {
		run := exec.CommandContext(t.Context(), binary, "run", "--sink=discard", "--database-url=postgres://u@127.0.0.1:1/d", "--archive-at=04:00", "--archive-zone="+zone)
		run.Env = []string{}
		out, err := run.CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != want {
			t.Errorf("%s: %v, want exit code %d\n%s", zone, err, want, out)
		}
	}
}
