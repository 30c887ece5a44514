package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/sink"
)

const published = "SELECT count(*) FROM events.outbox WHERE published_at IS NOT NULL"

func TestRunToStdout(t *testing.T) {
	t.Parallel()

	t.Run("prints an event as one CloudEvent a line, and marks it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		r := startWorker(t, db, "--sink", "stdout")
		outboxOn(t, db, "publish", "--aggregate-type", "invoice", "--aggregate-id", invoice, "--type", "InvoicePaid",
			"--data", `{"n": 12345678901234567890.10}`, "--version", "3", "--correlation-id", "c", "--causation-id", "e").succeeds(t)
		line := r.stdout.waitFor(t, lines(1))
		var event map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		for name, want := range map[string]string{
			"specversion": `"1.0"`, "source": `"/outbox/` + db.Name + `"`, "type": `"InvoicePaid"`, "subject": `"` + invoice + `"`,
			"datacontenttype": `"application/json"`, "outboxid": `"1"`, "aggregatetype": `"invoice"`, "eventversion": "3",
			"correlationid": `"c"`, "causationid": `"e"`, "data": `{"n": 12345678901234567890.10}`,
		} {
			if string(event[name]) != want {
				t.Errorf("%s is %s, want %s", name, event[name], want)
			}
		}
		eventually(t, db, 1, published)
		r.stop()
		if code := r.ends(t); code != exitClean {
			t.Errorf("exit code %d", code)
		}
		if n := strings.Count(r.stdout.String(), "\n"); n != 1 {
			t.Errorf("%d lines", n)
		}
	})
	t.Run("logs JSON lines with exact times to standard error", func(t *testing.T) {
		t.Parallel()
		r := startWorker(t, pgtest.Database(t), "--sink", "stdout", "--source", "urn:example:billing")
		r.stop()
		if code := r.ends(t); code != exitClean || r.stdout.String() != "" {
			t.Errorf("exit code %d, stdout %q", code, r.stdout)
		}
		last := ""
		for text := range strings.Lines(r.stderr.String()) {
			var line struct {
				Level, Message string
				Time           time.Time
			}
			if err := json.Unmarshal([]byte(text), &line); err != nil || line.Level == "" || line.Time.IsZero() {
				t.Errorf("%v: %s", err, text)
			}
			last = line.Message
		}
		if last != "stopped" {
			t.Errorf("the last line is %q", last)
		}
	})
	t.Run("logs for people where asked, and only what is asked for", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		r := start(t, db, strings.NewReader(""), "run", "--sink", "stdout", "--log-format", "console")
		text := r.stderr.waitFor(t, contains(" INF ready "))
		if strings.Contains(text, "{") || strings.Contains(text, "\x1b") {
			t.Errorf("%s", text)
		}
		quiet := start(t, pgtest.Database(t), strings.NewReader(""), "run", "--sink", "stdout", "--log-level", "error")
		insertFor(t, quiet)
		quiet.stop()
		if code := quiet.ends(t); code != exitClean || quiet.stderr.String() != "" {
			t.Errorf("exit code %d, stderr %s", code, quiet.stderr)
		}
	})
	t.Run("ends with a failure where the reader has gone, and leaves what was not printed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insert(t, db, 3)
		var stderr strings.Builder
		code := run(t.Context(), []string{"run", "--sink", "stdout", "--log-level", "error", "--shutdown-grace", "100ms"},
			[]string{"DATABASE_URL=" + db.URL}, strings.NewReader(""), brokenWriter{}, &stderr)
		want := "outbox: standard output is gone, and what was not printed stays for the next run: write to stdout: broken\n"
		if code != exitFailure || stderr.String() != want {
			t.Errorf("%d: %s", code, stderr.String())
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE published_at IS NULL AND retry_count = 0 AND next_retry_at IS NULL"); n != 3 {
			t.Errorf("%d events are untouched", n)
		}
	})
}

func TestWaitUntilSettled(t *testing.T) {
	t.Parallel()
	took := func(t *testing.T, ended <-chan error, unsettled func() int) (d time.Duration) {
		t.Helper()
		synctest.Test(t, func(*testing.T) {
			began := time.Now() // by the bubble's clock, which stands still while anything runs
			waitUntilSettled(ended, unsettled)
			d = time.Since(began)
		})
		return d
	}
	t.Run("is over as soon as nothing is unsettled", func(t *testing.T) {
		t.Parallel()
		left := 3
		if d := took(t, nil, func() int { left--; return left }); d != 3*settledInterval {
			t.Errorf("took %s", d)
		}
	})
	t.Run("does not last for ever where the database is gone", func(t *testing.T) {
		t.Parallel()
		if d := took(t, nil, func() int { return 1 }); d != brokenPatience {
			t.Errorf("took %s", d)
		}
	})
	t.Run("is over with the worker", func(t *testing.T) {
		t.Parallel()
		ended := make(chan error)
		close(ended)
		if d := took(t, ended, func() int { return 1 }); d != 0 {
			t.Errorf("took %s", d)
		}
	})
}

// insertFor publishes an event on the database of a worker and waits until it has been printed.
func insertFor(t *testing.T, r *running) {
	t.Helper()
	insert(t, r.db, 1)
	r.stdout.waitFor(t, lines(1))
}

func TestRunToWebhook(t *testing.T) {
	t.Parallel()

	t.Run("posts a signed CloudEvent", func(t *testing.T) {
		t.Parallel()
		const oldSecret, newSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
		verified := make(chan string, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			for _, secret := range []string{oldSecret, newSecret} {
				verifier, err2 := standardwebhooks.NewWebhook(secret)
				err = errors.Join(err, err2)
				if err2 == nil {
					err = errors.Join(err, verifier.Verify(body, r.Header))
				}
			}
			if err != nil {
				t.Errorf("%v: %s", err, body)
			}
			verified <- r.Header.Get("Content-Type") + " " + r.Header.Get("User-Agent")
		}))
		t.Cleanup(server.Close)
		file := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(file, []byte(newSecret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		db := pgtest.Database(t)
		r := startWorker(t, db, "--sink", server.URL, "--webhook-secret", oldSecret, "--webhook-secret-file", file)
		insert(t, db, 1)
		select {
		case got := <-verified:
			if !strings.HasPrefix(got, "application/cloudevents+json") || !strings.HasSuffix(got, "outbox/"+buildVersion()) {
				t.Error(got)
			}
		case <-time.After(patience):
			t.Fatal("nothing was posted")
		}
		eventually(t, db, 1, published)
		r.stop()
		if code := r.ends(t); code != exitClean {
			t.Errorf("exit code %d", code)
		}
		if text := r.stderr.String(); !strings.Contains(text, `"signed":true`) || strings.Contains(text, "whsec_") {
			t.Errorf("%s", text)
		}
	})
	t.Run("a refusal makes a dead letter, a fault a retry", func(t *testing.T) {
		t.Parallel()
		for status, want := range map[int]string{http.StatusNotFound: "dead", http.StatusServiceUnavailable: "retrying"} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
			t.Cleanup(server.Close)
			db := pgtest.Database(t)
			startWorker(t, db, "--sink", server.URL)
			insert(t, db, 1)
			eventually(t, db, want, `SELECT CASE WHEN next_retry_at = 'infinity' THEN 'dead' WHEN next_retry_at > now() THEN 'retrying' ELSE '' END FROM events.outbox`)
		}
	})
	t.Run("--max-attempts 1 makes a dead letter of the first fault", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
		t.Cleanup(server.Close)
		db := pgtest.Database(t)
		startWorker(t, db, "--sink", server.URL, "--max-attempts", "1")
		insert(t, db, 1)
		eventually(t, db, true, "SELECT next_retry_at IS NOT DISTINCT FROM 'infinity' FROM events.outbox")
	})
	t.Run("--ordering none lets the next event overtake a failed one", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var event struct{ OutboxID string }
			if err := json.NewDecoder(r.Body).Decode(&event); err != nil || event.OutboxID == "1" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(server.Close)
		for ordering, want := range map[string]string{"none": "false true", "per-aggregate": "false false"} {
			db := pgtest.Database(t)
			execSQL(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
				SELECT 'invoice', $1::uuid, 'E', '{}' FROM generate_series(1, 2)`, invoice)
			startWorker(t, db, "--sink", server.URL, "--ordering", ordering)
			other := insert(t, db, 1) // whose delivery shows that the worker has been through
			eventually(t, db, true, "SELECT published_at IS NOT NULL FROM events.outbox WHERE id = $1", other[0])
			if ordering == "none" {
				eventually(t, db, true, "SELECT published_at IS NOT NULL FROM events.outbox WHERE id = 2")
			}
			eventually(t, db, 1, "SELECT retry_count FROM events.outbox WHERE id = 1")
			got := query[string](t, db, "SELECT string_agg((published_at IS NOT NULL)::text, ' ' ORDER BY id) FROM events.outbox WHERE id < 3")
			if got != want {
				t.Errorf("%s: %s, want %s", ordering, got, want)
			}
		}
	})
}

func TestRunToDiscard(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	insert(t, db, 500)
	r := startWorker(t, db, "--sink", "discard", "--listen-url", db.URL)
	eventually(t, db, 500, published)
	r.stop()
	if code := r.ends(t); code != exitClean || r.stdout.String() != "" {
		t.Errorf("exit code %d, stdout %q", code, r.stdout)
	}
}

// An interruption before there is a worker is a clean stop like any other.
func TestRunInterruptedWhileConnecting(t *testing.T) {
	t.Parallel()
	r := start(t, pgtest.Database(t), strings.NewReader(""), "run", "--sink", "discard")
	r.stop()
	if code := r.ends(t); code != exitClean {
		t.Errorf("exit code %d: %s", code, r.stderr)
	}
}

// The names of subscribers are stored with events that failed in part, so they can never change.
func TestSubscriberNames(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{"stdout": "stdout", "discard": "discard", "http://h/": "webhook", "https://h/": "webhook"} {
		to, err := sink.Parse(spec, sink.Options{Source: "/s"})
		if err != nil {
			t.Fatal(err)
		}
		if got := subscriberName(to); got != want {
			t.Errorf("%s: %s, want %s", spec, got, want)
		}
	}
}
