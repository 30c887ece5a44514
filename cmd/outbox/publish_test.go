package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

const eventCount = "SELECT count(*) FROM events.outbox"

func TestPublishOne(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	event := []string{"publish", "--aggregate-type", "invoice", "--aggregate-id", invoice}

	t.Run("prints the id, and stores every digit and the envelope", func(t *testing.T) {
		t.Parallel()
		o := outboxOn(t, db, append(event, "--type", "InvoicePaid", "--data", `{"n": 12345678901234567890.10}`,
			"--version", "3", "--correlation-id", "c", "--causation-id", "e")...).succeeds(t)
		stored := query[string](t, db, `SELECT aggregate_type || ' ' || aggregate_id || ' ' || event_type || ' ' || payload::text
			FROM events.outbox WHERE id = $1::text::bigint`, strings.TrimSpace(o.stdout))
		want := "invoice " + invoice + ` InvoicePaid {"data": {"n": 12345678901234567890.10}, "version": 3, "metadata": {"causation_id": "e", "correlation_id": "c"}}`
		if stored != want {
			t.Errorf("%s\nwant %s", stored, want)
		}
	})
	t.Run("takes --event-type as well", func(t *testing.T) {
		t.Parallel()
		o := outboxOn(t, db, append(event, "--event-type", "InvoiceSent", "--data", "null")...).succeeds(t)
		if got := query[string](t, db, "SELECT event_type FROM events.outbox WHERE id = $1::text::bigint", strings.TrimSpace(o.stdout)); got != "InvoiceSent" {
			t.Errorf("%s", got)
		}
	})
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no JSON":     {[]string{"--type", "E", "--data", "{"}, "--data is not JSON"},
		"empty data":  {[]string{"--type", "E", "--data", ""}, "--data is not JSON"},
		"NUL":         {[]string{"--type", "E", "--data", `"\u0000"`}, "--data string at byte 0 contains NUL"},
		"empty type":  {[]string{"--type", "", "--data", "1"}, "--type is empty"},
		"two at once": {[]string{"--type", "", "--data", "x"}, "; --data is not JSON"},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			outboxOn(t, db, append(event, tt.args...)...).fails(t, exitUsage, tt.want)
		})
	}
	t.Run("does not look at standard input", func(t *testing.T) {
		t.Parallel()
		other := pgtest.Database(t)
		execute(t, eventLines(2), []string{"DATABASE_URL=" + other.URL}, append(event, "--type", "E", "--data", "1")...).succeeds(t)
		if n := query[int](t, other, eventCount); n != 1 {
			t.Errorf("%d events", n)
		}
	})
}

func TestPublishLines(t *testing.T) {
	t.Parallel()
	publish := func(t *testing.T, db *pgtest.DB, stdin string) outcome {
		t.Helper()
		return execute(t, stdin, []string{"DATABASE_URL=" + db.URL}, "publish")
	}
	t.Run("publishes them in order, and prints their ids", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		o := publish(t, db, eventLines(1203)).succeeds(t)
		ids := strings.Fields(o.stdout)
		if len(ids) != 1203 {
			t.Fatalf("%d ids", len(ids))
		}
		sorted := query[bool](t, db, `SELECT bool_and(o.payload -> 'data' ->> 'n' = p.n::text)
			FROM unnest($1::bigint[]) WITH ORDINALITY AS p (id, n) JOIN events.outbox o USING (id)`, ids)
		if n := query[int](t, db, eventCount); n != 1203 || !sorted {
			t.Errorf("%d events, in order: %t", n, sorted)
		}
		if n := query[int](t, db, "SELECT count(DISTINCT xmin::text) FROM events.outbox"); n != 3 {
			t.Errorf("%d transactions", n)
		}
	})
	t.Run("nothing of a bad line's batch is published, and the message says where to go on", func(t *testing.T) {
		t.Parallel()
		for name, tt := range map[string]struct{ bad, want string }{
			"malformed":        {"{\n", "line 1151: is not JSON"},
			"without a type":   {strings.Replace(eventLine(0), `"InvoicePaid"`, `""`, 1), "line 1151: event_type is empty"},
			"that jsonb hates": {strings.Replace(eventLine(0), `"n"`, `"\ud800"`, 1), "line 1151: data string at byte 1 contains half of a surrogate pair"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := pgtest.Database(t)
				stdin := eventLines(1150) + tt.bad + eventLine(1152)
				o := publish(t, db, stdin)
				if o.code != exitFailure || len(strings.Fields(o.stdout)) != 1000 {
					t.Errorf("exit code %d, %d ids", o.code, len(strings.Fields(o.stdout)))
				}
				want := "; 1000 events were published before: go on from line 1001\n"
				if !strings.HasPrefix(o.stderr, "outbox: "+tt.want) || !strings.HasSuffix(o.stderr, want) || strings.Count(o.stderr, "\n") != 1 {
					t.Errorf("stderr: %s", o.stderr)
				}
				if n := query[int](t, db, eventCount); n != 1000 {
					t.Errorf("%d events", n)
				}
			})
		}
	})
	t.Run("nothing is published of a bad first batch", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		publish(t, db, eventLines(2)+`{"n":1}`+"\n").fails(t, exitFailure, `line 3: unknown field "n"; nothing was published`)
		if n := query[int](t, db, eventCount); n != 0 {
			t.Errorf("%d events", n)
		}
	})
	t.Run("a line without data is named", func(t *testing.T) {
		t.Parallel()
		line := strings.Replace(eventLine(2), `,"data":{"n":2}`, "", 1)
		publish(t, pgtest.Database(t), eventLine(1)+line).fails(t, exitFailure, "line 2: data is missing")
	})
	t.Run("one event is not several", func(t *testing.T) {
		t.Parallel()
		p := &linePublisher{published: 1, next: 2}
		if err := p.stopped(t.Context(), io.ErrUnexpectedEOF); !strings.HasSuffix(err.Error(), "; 1 event was published before: go on from line 2") {
			t.Errorf("%v", err)
		}
	})
	t.Run("an error of the database names the lines", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		execSQL(t, db, "ALTER TABLE events.outbox ADD CHECK (payload -> 'data' ->> 'n' <> '502')")
		o := publish(t, db, eventLines(600))
		if o.code != exitFailure || !strings.Contains(o.stderr, "lines 501 to 600: ") || !strings.Contains(o.stderr, "; 500 events were published before: go on from line 501\n") {
			t.Errorf("%d: %s", o.code, o.stderr)
		}
	})
	t.Run("without lines nothing happens, and it says so", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		for _, stdin := range []string{"", "\n", "\ufeff"} {
			o := publish(t, db, stdin)
			if o != (outcome{exitClean, "", "outbox: nothing was published: standard input had no events\n"}) {
				t.Errorf("%q: %+v", stdin, o)
			}
		}
	})
	t.Run("a slow stream is published as it comes, and can be interrupted", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		stdin, producer := io.Pipe()
		defer producer.Close()
		r := start(t, db, stdin, "publish")
		if _, err := io.WriteString(producer, eventLines(2)); err != nil {
			t.Fatal(err)
		}
		r.stdout.waitFor(t, lines(2))
		r.stop()
		if code := r.ends(t); code != exitFailure {
			t.Errorf("exit code %d", code)
		}
		if text := r.stderr.String(); text != "outbox: interrupted; 2 events were published before: go on from line 3\n" {
			t.Errorf("%q", text)
		}
	})
	t.Run("a batch whose commit is unknown is said to be", func(t *testing.T) {
		t.Parallel()
		p := &linePublisher{publish: func(context.Context, []outbox.Message) ([]int64, error) {
			return nil, fmt.Errorf("publish batch: %w", io.ErrUnexpectedEOF)
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := p.run(ctx, newBatches(ctx, strings.NewReader("\n"+eventLines(3))))
		if err == nil || !strings.HasPrefix(err.Error(), "lines 2 to 4 may have been published or not, look before they are repeated: ") {
			t.Errorf("%v", err)
		}
	})
	t.Run("one that the server refused is not", func(t *testing.T) {
		t.Parallel()
		b := &batch{numbers: []int{2, 3, 4}, last: 4}
		if err := b.failed(&pgconn.PgError{Code: "57014"}); !strings.HasPrefix(err.Error(), "lines 2 to 4: ") {
			t.Errorf("%v", err)
		}
	})
	t.Run("ends where its ids cannot be printed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var stderr strings.Builder
		code := run(t.Context(), []string{"publish"}, []string{"DATABASE_URL=" + db.URL}, strings.NewReader(eventLines(501)), brokenWriter{}, &stderr)
		if code != exitFailure || stderr.String() != "outbox: write to standard output: broken; 500 events were published before: go on from line 501\n" {
			t.Errorf("%d: %s", code, stderr.String())
		}
	})
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }
