package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/measure/report"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// benchPatience bounds a whole bench: the shortest has its set-up, twenty workers one after another, and may share the machine.
const benchPatience = 5 * time.Minute

// noneLeft fails the test if a temporary database of a bench is left on a server that no other test uses.
func noneLeft(t *testing.T, db *pgtest.DB) {
	t.Helper()
	if left := query[string](t, db, "SELECT COALESCE(string_agg(datname, ', '), '') FROM pg_database WHERE starts_with(datname, $1)", measure.DatabasePrefix); left != "" {
		t.Errorf("databases are left over: %s", left)
	}
}

func TestBench(t *testing.T) {
	t.Parallel()

	t.Run("answers every question, with a page of charts, and leaves no database", func(t *testing.T) {
		t.Parallel()
		db := pgtest.DatabaseOn(t, pgtest.Cluster(t))
		page := filepath.Join(t.TempDir(), "report.html")
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), benchPatience)
		defer cancel()
		args := []string{"bench", "--for", "1s", "-o", "json", "--html", page}
		code := run(ctx, args, []string{"DATABASE_URL=" + db.URL}, strings.NewReader(""), &stdout, &stderr)
		o := outcome{code, stdout.String(), stderr.String()}.succeeds(t)
		html, err := os.ReadFile(page)
		if err != nil || strings.Count(string(html), "<svg ") != 3 {
			t.Errorf("page: %v: %s", err, html)
		}
		var results struct {
			Latency []struct {
				Name   string `json:"name"`
				Worker struct {
					FromCommit struct {
						Count int `json:"count"`
					} `json:"from_commit"`
				} `json:"worker"`
			} `json:"latency"`
			Publish []struct {
				Sessions int     `json:"sessions"`
				Ratio    float64 `json:"ratio_floor"` // of commits: none at all would be a failure
			} `json:"publish"`
			Drain []struct {
				Ratio float64 `json:"ratio"` // of events
			} `json:"drain"`
		}
		if err := json.Unmarshal([]byte(o.stdout), &results); err != nil {
			t.Fatalf("%v: %s", err, o.stdout)
		}
		if len(results.Latency) != 4 || results.Latency[0].Name != "idle" || results.Latency[0].Worker.FromCommit.Count == 0 {
			t.Errorf("latency: %+v", results.Latency)
		}
		if len(results.Publish) != 3 || results.Publish[2].Sessions != 64 || results.Publish[2].Ratio <= 0 {
			t.Errorf("publish: %+v", results.Publish)
		}
		if len(results.Drain) != 4 || results.Drain[0].Ratio <= 0 {
			t.Errorf("drain: %+v", results.Drain)
		}
		noneLeft(t, db)
	})
	t.Run("prints tables where nothing else was asked for", func(t *testing.T) {
		t.Parallel()
		r := report.Report{Results: measure.Results{Idle: &measure.Idled{Queries: 2}}}
		var text, json strings.Builder
		if err := errors.Join(writeBench(&text, r, "text"), writeBench(&json, r, "json")); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), "A WORKER WITH NOTHING TO DO") || !strings.Contains(json.String(), `"queries_per_s": 2`) {
			t.Errorf("%s%s", &text, &json)
		}
	})
	t.Run("a server with little room is measured with fewer sessions, or not at all", func(t *testing.T) {
		t.Parallel()
		for free, want := range map[int]int{200: 3, benchWorkers + 16: 2, benchWorkers + benchPublishers: 1} {
			plan, err := newBenchPlan(nil, free)
			if err != nil {
				t.Fatal(err)
			}
			sessions := 0
			for _, part := range plan {
				for _, step := range part.steps {
					if strings.HasSuffix(step.name, " sessions") {
						sessions++
					}
				}
			}
			if sessions != want {
				t.Errorf("with room for %d: %d measurements of publishers, want %d", free, sessions, want)
			}
		}
		if _, err := newBenchPlan(nil, 10); err == nil || !strings.Contains(err.Error(), "room for 10 more connections, and bench needs 32") {
			t.Errorf("%v", err)
		}
	})
}

func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	for name, reached := range map[string]string{
		"while it starts":    "SELECT EXISTS (SELECT FROM pg_database WHERE starts_with(datname, $1))",
		"while it publishes": "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE starts_with(datname, $1) AND query LIKE '%INSERT INTO events.outbox%')",
	} {
		t.Run(name+", it drops its databases", func(t *testing.T) {
			t.Parallel()
			db := pgtest.DatabaseOn(t, pgtest.Cluster(t))
			cmd := process(t, []string{"DATABASE_URL=" + db.URL}, "bench", "--for", "1m", "--html", filepath.Join(t.TempDir(), "report.html"))
			var stdout bytes.Buffer
			cmd.Stdout = &stdout
			stderr := begin(t, cmd)
			eventually(t, db, true, reached, measure.DatabasePrefix)
			send(t, cmd, syscall.SIGINT)
			if code := exitCode(t, cmd); code != exitFailure || stderr.String() != "outbox: interrupted\n" || stdout.Len() > 0 {
				t.Errorf("exit code %d, stderr %q, stdout %q", code, stderr, &stdout)
			}
			noneLeft(t, db)
		})
	}
}

func TestBenchThatCannot(t *testing.T) {
	t.Parallel()

	t.Run("a role that may not create databases", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		role := strings.ReplaceAll(db.Name, "outbox_test", "nobody")
		execSQL(t, db, "CREATE ROLE "+role)
		t.Cleanup(func() { execSQLDetached(t, db, "DROP ROLE "+role) })
		execute(t, "", []string{"DATABASE_URL=" + withParameter(t, db.URL, "role", role)}, "bench").
			fails(t, exitFailure, "may not create databases, and bench works in temporary ones: ALTER ROLE", "CREATEDB")
	})
	t.Run("a page that cannot be written, and too little time", func(t *testing.T) {
		t.Parallel()
		for args, want := range map[string]string{
			"--html /nonexistent/report.html": "--html: there is no folder /nonexistent",
			"--html /":                        "--html: / is a folder",
			"--html=":                         "--html is empty",
			"--for 10ms":                      "--for 10ms is less than 1s",
			"--for soon":                      `--for: "soon" is not a duration`,
		} {
			execute(t, "", []string{nowhere}, append([]string{"bench"}, strings.Fields(args)...)...).fails(t, exitUsage, want)
		}
	})
	t.Run("a folder that takes no files", func(t *testing.T) {
		t.Parallel()
		if runtime.GOOS != "linux" {
			t.Skip("there is no /proc")
		}
		execute(t, "", []string{nowhere}, "bench", "--html", "/proc/report.html").
			fails(t, exitFailure, "--html: cannot write to folder /proc: no such file or directory")
	})
	t.Run("a server that is not there", func(t *testing.T) {
		t.Parallel()
		folder := t.TempDir()
		execute(t, "", []string{nowhere}, "bench", "--html", filepath.Join(folder, "report.html")).fails(t, exitFailure, "cannot reach PostgreSQL at 127.0.0.1:1")
		if files, err := os.ReadDir(folder); err != nil || len(files) > 0 {
			t.Errorf("files are left over: %v, %v", files, err)
		}
	})
}

func TestBenchPlan(t *testing.T) {
	t.Parallel()

	t.Run("shares the time out, and stops what it started", func(t *testing.T) {
		t.Parallel()
		var got []string
		part := func(name string, shares ...float64) benchPart {
			p := benchPart{start: func(context.Context) (func() error, error) {
				return func() error { got = append(got, "stop "+name); return nil }, nil
			}}
			for _, share := range shares {
				p.steps = append(p.steps, benchStep{name, share, func(_ context.Context, budget time.Duration, _ *measure.Results) error {
					got = append(got, name+" "+budget.String())
					return nil
				}})
			}
			return p
		}
		err := benchPlan{part("a", 1, 2), part("b", 5)}.run(t.Context(), 8*time.Second, nil, &measure.Results{})
		if want := "a 1s, a 2s, stop a, b 5s, stop b"; err != nil || strings.Join(got, ", ") != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	})
	t.Run("says what failed, and stops it", func(t *testing.T) {
		t.Parallel()
		stopped := false
		failure := errors.New("broken")
		err := benchPlan{{
			start: func(context.Context) (func() error, error) { return func() error { stopped = true; return nil }, nil },
			steps: []benchStep{{"a thing", 1, func(context.Context, time.Duration, *measure.Results) error { return failure }}},
		}}.run(t.Context(), time.Second, nil, &measure.Results{})
		if !errors.Is(err, failure) || !strings.Contains(err.Error(), "measure a thing") || !stopped {
			t.Errorf("%v, stopped: %v", err, stopped)
		}
	})
}

func TestBenchBar(t *testing.T) {
	t.Parallel()

	t.Run("moves with the time of a step, and no further", func(t *testing.T) {
		t.Parallel()
		var w strings.Builder
		now := time.Unix(0, 0)
		b := &benchBar{w: &w, budget: 10 * time.Second, name: "a step", done: 0.5, share: 0.2, since: now}
		b.show(now.Add(time.Second))
		b.show(now.Add(time.Minute))
		want := "\r[" + strings.Repeat("#", 18) + strings.Repeat(".", 12) + "]  60 %  a step\x1b[K" +
			"\r[" + strings.Repeat("#", 21) + strings.Repeat(".", 9) + "]  70 %  a step\x1b[K"
		if w.String() != want {
			t.Errorf("%q, want %q", w.String(), want)
		}
	})
	t.Run("is gone in the end", func(t *testing.T) {
		t.Parallel()
		var w strings.Builder
		b := newBenchBar(&w, time.Second)
		b.begin("a step", 0, 1)
		b.end()
		if !strings.HasSuffix(w.String(), "\r\x1b[K") {
			t.Errorf("%q", w.String())
		}
	})
	t.Run("without a terminal there is none", func(t *testing.T) {
		t.Parallel()
		var b *benchBar
		b.begin("a step", 0, 1)
		b.end()
	})
}
