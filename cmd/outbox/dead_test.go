package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// die makes events dead letters.
func die(t *testing.T, db *pgtest.DB, lastError string, ids ...int64) {
	t.Helper()
	execSQL(t, db, "UPDATE events.outbox SET retry_count = 10, last_error = $1, next_retry_at = 'infinity' WHERE id = ANY ($2)", lastError, ids)
}

// logs fails the test unless the command line was a success that logged one line, an event of that name.
func (o outcome) logs(t *testing.T, event string) outcome {
	t.Helper()
	var line struct{ Message, By string }
	if err := json.Unmarshal([]byte(o.stderr), &line); o.code != exitClean || err != nil || line.Message != event || line.By == "" {
		t.Fatalf("exit code %d, stderr: %s", o.code, o.stderr)
	}
	return o
}

func TestListCommand(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	ids := insert(t, db, 5)
	die(t, db, "boom \x1b[31m\nred "+strings.Repeat("é", 100), ids[1], ids[3])

	t.Run("a table, page by page", func(t *testing.T) {
		t.Parallel()
		o := outboxOn(t, db, "list", "--limit", "3").succeeds(t)
		lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
		if len(lines) != 5 || !strings.HasPrefix(lines[0], "ID ") || lines[4] != fmt.Sprintf("there are more: --after %d", ids[2]) {
			t.Errorf("%s", o.stdout)
		}
		if o := outboxOn(t, db, "list", "--after", fmt.Sprint(ids[2])).succeeds(t); strings.Count(o.stdout, "InvoicePaid") != 2 || strings.Contains(o.stdout, "more") {
			t.Errorf("%s", o.stdout)
		}
		if o := outboxOn(t, db, "list", "--state", "published").succeeds(t); o.stdout != "no events\n" {
			t.Errorf("%s", o.stdout)
		}
	})
	t.Run("an error cannot move the cursor, and is cut", func(t *testing.T) {
		t.Parallel()
		o := outboxOn(t, db, "dead", "list").succeeds(t)
		if strings.ContainsAny(o.stdout, "\x1b\r") || strings.Count(o.stdout, "\n") != 3 || !strings.Contains(o.stdout, "é…") {
			t.Errorf("%q", o.stdout)
		}
	})
	t.Run("JSON has whole errors, and where the next page begins", func(t *testing.T) {
		t.Parallel()
		var page eventPage
		o := outboxOn(t, db, "dead", "list", "--newest", "--limit", "1", "-o", "json").succeeds(t)
		if err := json.Unmarshal([]byte(o.stdout), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Events) != 1 || page.Events[0].ID != ids[3] || page.Events[0].State != admin.Dead || page.Next == nil || *page.Next != ids[3] ||
			!strings.HasSuffix(page.Events[0].LastError, "éé") {
			t.Errorf("%s", o.stdout)
		}
		if o := outboxOn(t, db, "list", "--type", "none", "-o", "json").succeeds(t); !strings.Contains(o.stdout, `"events": []`) || !strings.Contains(o.stdout, `"next_after": null`) {
			t.Errorf("%s", o.stdout)
		}
	})
	t.Run("a wrong filter is told in one line", func(t *testing.T) {
		t.Parallel()
		for line, want := range map[string]string{
			"--aggregate invoice/7":          `"invoice/7" is not TYPE/ID, where ID is a UUID`,
			"--aggregate /" + invoice:        "is not TYPE/ID",
			"--type=":                        "--type is empty",
			"--state lost":                   `"lost" is not one of unpublished, pending`,
			"--older-than 7days":             "is not a duration",
			"--limit 0":                      "is not a whole number",
			"--type= --aggregate invoice/ix": "--type is empty",
		} {
			outboxOn(t, db, append([]string{"list"}, strings.Fields(line)...)...).fails(t, exitUsage, want)
		}
	})
}

func TestDeadShow(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	add := func() (id int64) {
		return query[int64](t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('invoice', $1, 'InvoicePaid', '{"version": 1, "data": {"n": 12345678901234567890, "html": "<b>"}}') RETURNING id`, uuid.UUID{1})
	}
	id, later := add(), add()
	add()
	execSQL(t, db, "UPDATE events.outbox SET retry_count = 2, last_error = 'no route', next_retry_at = now() + interval '1 hour' WHERE id = $1", id)
	execSQL(t, db, "INSERT INTO events.outbox_delivery (outbox_id, subscriber) VALUES ($1, 'mail')", id)

	o := outboxOn(t, db, "dead", "show", fmt.Sprint(id)).succeeds(t)
	for _, want := range []string{"retrying", "no route", "2 of its aggregate wait for it", "mail: delivered at", "12345678901234567890", `"<b>"`} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("it does not say %q: %s", want, o.stdout)
		}
	}
	if o := outboxOn(t, db, "dead", "show", fmt.Sprint(later)).succeeds(t); !strings.Contains(o.stdout, fmt.Sprintf("event %d of its aggregate, which is retrying", id)) {
		t.Errorf("%s", o.stdout)
	}
	var detail admin.Detail
	o = outboxOn(t, db, "dead", "show", fmt.Sprint(id), "-o", "json").succeeds(t)
	if err := json.Unmarshal([]byte(o.stdout), &detail); err != nil || detail.LaterWaiting != 2 || !strings.Contains(o.stdout, "12345678901234567890") {
		t.Errorf("%v: %s", err, o.stdout)
	}
	outboxOn(t, db, "dead", "show", "4711").fails(t, exitFailure, "event 4711 does not exist")
	outboxOn(t, db, "dead", "show", "x").fails(t, exitUsage, "is not the id of an event")
	outboxOn(t, db, "dead", "show").fails(t, exitUsage, "give the id of one event")
}

func TestDeadRetry(t *testing.T) {
	t.Parallel()

	t.Run("a worker delivers it, and it says what it came after", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		ids := insert(t, db, 2)
		execSQL(t, db, "UPDATE events.outbox SET aggregate_id = $1", uuid.UUID{1})
		die(t, db, "boom", ids[0])
		startWorker(t, db, "--sink", "discard")
		eventually(t, db, 1, "SELECT count(*)::int FROM events.outbox WHERE published_at IS NOT NULL")
		outboxOn(t, db, "dead", "retry", fmt.Sprint(ids[0]), "--dry-run").succeeds(t)
		o := outboxOn(t, db, "dead", "retry", fmt.Sprint(ids[0]), "--yes").logs(t, "dead_letters_redriven")
		if want := fmt.Sprintf("1 dead letter is tried again\nevent %d goes out after 1 later event of its aggregate\n", ids[0]); o.stdout != want {
			t.Errorf("%q, want %q", o.stdout, want)
		}
		eventually(t, db, 2, "SELECT count(*)::int FROM events.outbox WHERE published_at IS NOT NULL")
	})
	t.Run("it says what will not be tried yet, and why", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		ids := insert(t, db, 2)
		execSQL(t, db, "UPDATE events.outbox SET aggregate_id = $1", uuid.UUID{1})
		execSQL(t, db, "UPDATE events.outbox SET retry_count = 1, next_retry_at = now() + interval '1 hour' WHERE id = $1", ids[0])
		die(t, db, "boom", ids[1])
		o := outboxOn(t, db, "dead", "retry", "--all", "--yes").logs(t, "dead_letters_redriven")
		want := fmt.Sprintf("1 dead letter is tried again\nevent %d waits for event %[2]d of its aggregate, which is in retry: see `outbox dead show %[2]d`\n"+
			"no worker is connected: they wait for one\n", ids[1], ids[0])
		if o.stdout != want {
			t.Errorf("%q, want %q", o.stdout, want)
		}
	})
	t.Run("all that match", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		ids := insert(t, db, 4)
		die(t, db, "timeout", ids[:3]...)
		die(t, db, "other", ids[3])
		all := []string{"dead", "retry", "--all", "--error-contains", "TIME"}
		if o := outboxOn(t, db, append(all, "--dry-run")...).succeeds(t); !strings.HasPrefix(o.stdout, "3 dead letters would be affected") {
			t.Errorf("%s", o.stdout)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE next_retry_at = 'infinity'"); n != 4 {
			t.Errorf("after a dry run %d are dead", n)
		}
		outboxOn(t, db, append(all, "--yes")...).logs(t, "dead_letters_redriven")
		if o := outboxOn(t, db, append(all, "--yes")...).succeeds(t); o.stdout != "no dead letters match: nothing to do\n" {
			t.Errorf("%s", o.stdout)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE next_retry_at = 'infinity'"); n != 1 {
			t.Errorf("%d are dead, want the other one", n)
		}
	})
	t.Run("bad input changes nothing, and is told in one line", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		ids := insert(t, db, 2)
		die(t, db, "boom", ids[0])
		dead := fmt.Sprint(ids[0])
		for line, want := range map[string]string{
			dead + " 4711 --yes":                            "event 4711 does not exist: nothing was changed",
			fmt.Sprintf("%s %d --yes", dead, ids[1]):        fmt.Sprintf("event %d is pending, not dead: nothing was changed", ids[1]),
			fmt.Sprintf("%s %d --dry-run", dead, ids[1]):    "is pending, not dead",
			fmt.Sprintf("%s --type InvoicePaid -y", dead):   "not both",
			fmt.Sprintf("%s --all -y", dead):                "not both",
			dead:                                            "confirm with --yes",
			"--all":                                         "confirm with --yes",
			"--yes":                                         "which ones? give ids, or --all",
			"--type InvoicePaid --yes":                      "add --all",
			"--all --type= --yes":                           "--type is empty",
			"x --yes":                                       "is not the id of an event",
			"99999999999999999999 --yes":                    "is not the id of an event",
			"--all --aggregate invoice/x --yes --dry-run":   "is not TYPE/ID",
			"--all --yes --newer-than never --type Deleted": "is not a duration",
			"--all --yes --newer-than 1h --older-than 1h":   "nothing is both older than 1h0m0s and newer than 1h0m0s",
			"--all --yes --type \xff":                       "is not UTF-8",
		} {
			code := exitUsage
			if strings.Contains(want, "event ") && strings.Contains(want, "changed") || strings.Contains(want, "is pending") {
				code = exitFailure
			}
			outboxOn(t, db, append([]string{"dead", "retry"}, strings.Fields(line)...)...).fails(t, code, want)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE next_retry_at = 'infinity'"); n != 1 {
			t.Errorf("%d are dead, want 1 as before", n)
		}
	})
	t.Run("the environment neither chooses nor confirms", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		die(t, db, "boom", insert(t, db, 1)...)
		for _, variable := range []string{"OUTBOX_YES=true", "OUTBOX_TYPE=InvoicePaid", "OUTBOX_OLDER_THAN=1h"} {
			name, _, _ := strings.Cut(variable, "=")
			execute(t, "", []string{"DATABASE_URL=" + db.URL, variable}, "dead", "retry", "--all").fails(t, exitUsage, name+" is set, and --", "counts only as a flag")
		}
		execute(t, "", []string{"DATABASE_URL=" + db.URL, "OUTBOX_ALL=true"}, "dead", "retry").fails(t, exitUsage, "OUTBOX_ALL is set")
		execute(t, "", []string{"DATABASE_URL=" + db.URL, "OUTBOX_TYPE=Lost"}, "dead", "list", "--type", "InvoicePaid").succeeds(t)
	})
}

func TestDeadDiscard(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	ids := insert(t, db, 4)
	die(t, db, "boom", ids...)
	path := filepath.Join(t.TempDir(), "discarded.ndjson")

	outboxOn(t, db, "dead", "discard", fmt.Sprint(ids[0]), "--yes").fails(t, exitUsage, "where to keep a copy?")
	outboxOn(t, db, "dead", "discard", fmt.Sprint(ids[0]), "--yes", "--to", "table:lost").fails(t, exitUsage, "is not table:SCHEMA.TABLE")
	outboxOn(t, db, "dead", "discard", fmt.Sprint(ids[0]), "--yes", "--to", filepath.Join(path, "nowhere.ndjson")).fails(t, exitFailure, "cannot keep events in", "nothing was changed")
	outboxOn(t, db, "dead", "discard", fmt.Sprint(ids[0]), "--yes", "--to", "table:lost.events").fails(t, exitFailure, `schema "lost" does not exist`, "nothing was changed")
	directory := filepath.Join(t.TempDir(), "directory.ndjson")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"not a regular file":    directory,
		"is not FILE.ndjson":    "public.discarded",
		"something else":        filepath.Join(t.TempDir(), "diary.ndjson"),
		"nothing was changed":   "table:pg_catalog.pg_class",
		"names of up to 63 byt": "table:public." + strings.Repeat("x", 64),
	} {
		if name == "something else" {
			if err := os.WriteFile(to, []byte("dear diary"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, confirm := range []string{"--yes", "--dry-run"} {
			if o := outboxOn(t, db, "dead", "discard", "--all", confirm, "--to", to); o.code == exitClean || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, name) {
				t.Errorf("%s to %s: %+v", confirm, to, o)
			}
		}
	}
	outboxOn(t, db, "dead", "discard", "--all", "--dry-run", "--to", path).succeeds(t)
	outboxOn(t, db, "dead", "discard", "--all", "--dry-run", "--to", "table:public.discarded").succeeds(t)
	if _, err := os.Stat(path); err == nil || query[bool](t, db, "SELECT to_regclass('public.discarded') IS NOT NULL") {
		t.Error("a dry run has left something behind")
	}
	if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != 4 {
		t.Fatalf("%d events are left, want all", n)
	}
	for _, id := range ids[:2] { // appended
		outboxOn(t, db, "dead", "discard", fmt.Sprint(id), "--yes", "--to", path).logs(t, "dead_letters_discarded")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var kept []int64
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e struct{ ID int64 }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, e.ID)
	}
	if fmt.Sprint(kept) != fmt.Sprint(ids[:2]) {
		t.Errorf("kept %v, want %v", kept, ids[:2])
	}
	o := outboxOn(t, db, "dead", "discard", "--all", "--yes", "--to", "-").logs(t, "dead_letters_discarded")
	if strings.Count(o.stdout, "\n") != 2 || !strings.Contains(o.stdout, fmt.Sprintf(`"id": %d,`, ids[3])) {
		t.Errorf("%s", o.stdout)
	}
	if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, " yes \n": true, "n\n": false, "\n": false, "": false, "yesterday\n": false} {
		var question strings.Builder
		a := &app{stdin: strings.NewReader(answer), stderr: &question}
		if got, err := a.ask(t.Context(), "Retry 3 dead letters?"); err != nil || got != want {
			t.Errorf("%q: %v, %v", answer, got, err)
		}
		if question.String() != "Retry 3 dead letters? [y/N] " {
			t.Errorf("asked %q", question.String())
		}
	}
}
