package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// output is what a demo has shown so far.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	onWrite func(text string) // nil, or called with everything shown so far
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if o.onWrite != nil {
		o.onWrite(o.text.String())
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// closing is an output that is closed after the first event.
type closing struct{ output }

func (c *closing) Write(p []byte) (int, error) {
	if strings.Contains(c.String(), orderPlaced) {
		return 0, io.ErrClosedPipe
	}
	return c.output.Write(p)
}

// quick is a demo of a second or two.
func quick(out *output) Options {
	return Options{Out: out, Events: 100, Rate: 50, Retry: []time.Duration{20 * time.Millisecond, 40 * time.Millisecond}}
}

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("on a private server", func(t *testing.T) {
		t.Parallel()
		var out output
		summary, err := Run(t.Context(), quick(&out))
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		checkSummary(t, summary, 100)
		checkOutput(t, out.String(), summary)

		folder := regexp.MustCompile(`folder +(/\S+),`).FindStringSubmatch(out.String())
		if folder == nil {
			t.Fatalf("no folder is named in\n%s", out.String())
		}
		if _, err := os.Stat(folder[1]); !os.IsNotExist(err) {
			t.Errorf("folder %s is left over: %v", folder[1], err)
		}
	})

	t.Run("on a server that it is given", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		var out output
		o := quick(&out)
		o.DatabaseURL = db.URL
		summary, err := Run(t.Context(), o)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		checkSummary(t, summary, 100)
		name := databaseName(t, out.String())
		if exists(t, db.Pool, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name) {
			t.Errorf("database %s is left over", name)
		}
		if exists(t, db.Pool, "SELECT to_regclass('events.outbox') IS NOT NULL OR to_regclass('shop') IS NOT NULL") {
			t.Error("the database that it was given was written to")
		}
	})

	t.Run("until it is stopped, and then delivers what is committed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		ctx, stop := context.WithCancel(t.Context())
		out := output{onWrite: func(text string) {
			if strings.Contains(text, "retry in") {
				stop()
			}
		}}
		o := quick(&out)
		o.DatabaseURL, o.Events = db.URL, 0
		summary, err := Run(ctx, o)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if summary.Published == 0 || summary.Failed == 0 {
			t.Errorf("stopped after a failure with %+v", summary)
		}
		if strings.Contains(out.String(), "Stopped before") {
			t.Errorf("it had begun:\n%s", out.String())
		}
		if name := databaseName(t, out.String()); exists(t, db.Pool, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name) {
			t.Errorf("database %s is left over", name)
		}
	})

	t.Run("for a time", func(t *testing.T) {
		t.Parallel()
		var out output
		o := quick(&out)
		o.DatabaseURL, o.Events, o.For = pgtest.EmptyDatabase(t).URL, 0, time.Second
		summary, err := Run(t.Context(), o)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if summary.Published == 0 || summary.Elapsed < time.Second {
			t.Errorf("published %d in %s", summary.Published, summary.Elapsed)
		}
	})

	t.Run("stopped before it has begun is no error", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		for _, url := range []string{"", pgtest.EmptyDatabase(t).URL} {
			var out output
			o := quick(&out)
			o.DatabaseURL = url
			if _, err := Run(ctx, o); err != nil {
				t.Errorf("database url %q: %v", url, err)
			}
			if !strings.Contains(out.String(), "Stopped before it had begun.") {
				t.Errorf("database url %q: shown:\n%s", url, out.String())
			}
		}
	})

	t.Run("stops when nobody reads any more", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		head := &closing{}
		_, err := Run(t.Context(), Options{Out: head, DatabaseURL: db.URL, Retry: quick(nil).Retry})
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error %v", err)
		}
		if name := databaseName(t, head.String()); exists(t, db.Pool, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name) {
			t.Errorf("database %s is left over", name)
		}
	})

	t.Run("on an unreachable server is an error", func(t *testing.T) {
		t.Parallel()
		var out output
		o := quick(&out)
		o.DatabaseURL = "host=" + t.TempDir() + " connect_timeout=5"
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "make a temporary database") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("as a role that may not create databases says what is missing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		role := db.Name + "_role"
		if _, err := db.Pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := db.Pool.Exec(context.Background(), "DROP ROLE "+role); err != nil {
				t.Error(err)
			}
		})
		var out output
		o := quick(&out)
		o.DatabaseURL = strings.Replace(db.URL, "postgres@", role+"@", 1)
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "CREATEDB") {
			t.Errorf("error %v", err)
		}
	})
}

func checkSummary(t *testing.T, s Summary, events int) {
	t.Helper()
	if own := s.Published - s.ByHandlers; own != events {
		t.Errorf("services published %d events, not %d", own, events)
	}
	if s.Dead != 1 || s.Delivered != s.Published-1 {
		t.Errorf("%d published: %d delivered, %d dead", s.Published, s.Delivered, s.Dead)
	}
	if want := (stored{Published: s.Delivered, Dead: 1}); s.Stored != want {
		t.Errorf("stored %+v, want %+v", s.Stored, want)
	}
	if s.OutOfOrder != 0 || s.Ghosts != 0 || s.Unlinked != 0 || s.Repeated != 0 {
		t.Errorf("broken promises: %+v", s)
	}
	if s.Retried == 0 || s.ByHandlers == 0 || s.RolledBack == 0 || s.Aggregates < 10 {
		t.Errorf("not everything was shown: %+v", s)
	}
	if n := s.Latency.N + s.Waited; n != s.Published {
		t.Errorf("%d first attempts of %d events", n, s.Published)
	}
	if s.PastDue.N != s.Failed-s.Dead {
		t.Errorf("%d retries after %d failures", s.PastDue.N, s.Failed-s.Dead)
	}
}

// checkOutput compares what was shown with the summary.
func checkOutput(t *testing.T, text string, s Summary) {
	t.Helper()
	var attempts int
	attempt := regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3} [ +]`)
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		wide := utf8.RuneCountInString(line) > 80 && !strings.HasPrefix(line, "  server ") // as wide as the path to the server
		if wide || strings.ContainsAny(line, "\x1b\r") {
			t.Errorf("line is wider than 80 columns, or not plain: %q", line)
		}
		if !attempt.MatchString(line) {
			continue
		}
		attempts++
		if line[:12] < last && last < "23:59" {
			t.Errorf("time goes back after %s: %q", last, line)
		}
		last = line[:12]
	}
	skipped := 0
	if strings.Contains(text, "more deliveries") {
		t.Log("some deliveries were not shown")
		skipped = s.Delivered
	}
	if want := s.Delivered + s.Failed; attempts > want || attempts+skipped < want {
		t.Errorf("%d attempts shown of %d", attempts, want)
	}
	if n := len(regexp.MustCompile(`\d  dead letter\n`).FindAllString(text, -1)); n != 1 {
		t.Errorf("%d dead letters shown", n)
	}
	for _, want := range []string{"Starting a private", "a burst:", "> PaymentRequested", "nothing is pending but the dead letter", "cleaned up"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not shown", want)
		}
	}
	if t.Failed() {
		t.Log("\n" + text)
	}
}

func databaseName(t *testing.T, text string) string {
	t.Helper()
	name := regexp.MustCompile(`outbox_demo_\w+`).FindString(text)
	if name == "" {
		t.Fatalf("no database is named in\n%s", text)
	}
	return name
}

func exists(t *testing.T, pool *pgxpool.Pool, query string, args ...any) (found bool) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), query, args...).Scan(&found); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"for":    {For: -time.Second},
		"rate":   {Rate: 1e6},
		"events": {Events: -1},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
