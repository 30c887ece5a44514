package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

func TestMigrate(t *testing.T) {
	t.Parallel()

	t.Run("up says what it applied, and that there is nothing left", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		o := outboxOn(t, db, "migrate", "up").succeeds(t)
		if strings.Count(o.stdout, "applied 000") != migrations.Latest {
			t.Errorf("%s", o.stdout)
		}
		if o := outboxOn(t, db, "migrate", "up").succeeds(t); o.stdout != fmt.Sprintf("up to date: version %d\n", migrations.Latest) {
			t.Errorf("%s", o.stdout)
		}
	})
	t.Run("status lists the migrations", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		o := outboxOn(t, db, "migrate", "status").succeeds(t)
		if !strings.HasPrefix(o.stdout, "VERSION  NAME ") || strings.Count(o.stdout, "  pending\n") != migrations.Latest {
			t.Errorf("before: %s", o.stdout)
		}
		outboxOn(t, db, "migrate", "up").succeeds(t)
		outboxOn(t, db, "migrate", "down").succeeds(t)
		o = outboxOn(t, db, "migrate", "status").succeeds(t)
		if strings.Count(o.stdout, "Z\n") != migrations.Latest-1 || strings.Count(o.stdout, "  pending\n") != 1 {
			t.Errorf("after: %s", o.stdout)
		}
	})
	t.Run("down takes back one after the other, and asks before the events go", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		insert(t, db, 1)
		for range migrations.Latest - 1 {
			if o := outboxOn(t, db, "migrate", "down").succeeds(t); !strings.HasPrefix(o.stdout, "took back 000") {
				t.Errorf("%s", o.stdout)
			}
		}
		outboxOn(t, db, "migrate", "down").fails(t, exitUsage, "every event in it is lost: add --yes to confirm")
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != 1 {
			t.Fatalf("%d events", n)
		}
		outboxOn(t, db, "migrate", "down", "--yes").succeeds(t)
		if query[bool](t, db, "SELECT to_regclass('events.outbox') IS NOT NULL") {
			t.Error("the table is still there")
		}
	})
	t.Run("down --all asks, and takes back everything", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		outboxOn(t, db, "migrate", "down", "--all").fails(t, exitUsage, "add --yes to confirm")
		if o := outboxOn(t, db, "migrate", "down", "--all", "--yes").succeeds(t); o.stdout != "took back everything\n" {
			t.Errorf("%s", o.stdout)
		}
		if query[bool](t, db, "SELECT to_regnamespace('events') IS NOT NULL") {
			t.Error("the schema is still there")
		}
	})
	t.Run("sql prints a script that makes the same, and leaves it to the tool that ran it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		script := execute(t, "", nil, "migrate", "sql").succeeds(t).stdout
		// One statement at a time, as psql does: the script builds indexes concurrently.
		runScript(t, db, script)
		outboxOn(t, db, strings.Fields(needing[2])...).succeeds(t)
		if o := outboxOn(t, db, "migrate", "up").succeeds(t); o.stdout != fmt.Sprintf("up to date: version %d, applied by another migration tool\n", migrations.Latest) {
			t.Errorf("up: %s", o.stdout)
		}
		if o := outboxOn(t, db, "migrate", "status").succeeds(t); !strings.HasPrefix(o.stdout, fmt.Sprintf("schema version %d: the outbox schema was applied by another migration tool", migrations.Latest)) {
			t.Errorf("status: %s", o.stdout)
		}
		outboxOn(t, db, "migrate", "down").fails(t, exitFailure, "applied by another migration tool")
	})
	t.Run("a table that differs is refused in one line", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		execSQL(t, db, "CREATE SCHEMA events; CREATE TABLE events.outbox (id int)")
		outboxOn(t, db, "migrate", "up").fails(t, exitFailure, "differs from the specification", "column payload is missing")
	})
}

var dollarQuote = regexp.MustCompile(`\$[a-z]*\$`)

// runScript runs SQL statement by statement. A statement ends with a line that ends with a semicolon, outside dollar quotes.
func runScript(t *testing.T, db *pgtest.DB, script string) {
	t.Helper()
	conn := db.Connect(t)
	var statement strings.Builder
	for line := range strings.Lines(script) {
		statement.WriteString(line)
		text := statement.String()
		if strings.HasSuffix(strings.TrimSpace(line), ";") && len(dollarQuote.FindAllString(text, -1))%2 == 0 {
			if _, err := conn.Exec(t.Context(), text); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			statement.Reset()
		}
	}
}
