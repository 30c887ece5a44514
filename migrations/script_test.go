package migrations_test

import (
	"context"
	"errors"
	osexec "os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

// withPSQL runs a script as an operator does.
func withPSQL(ctx context.Context, t *testing.T, db *pgtest.DB, script string) (output string, err error) {
	t.Helper()
	psql, err := osexec.LookPath("psql")
	if err != nil {
		t.Skip("psql is not installed")
	}
	command := osexec.CommandContext(ctx, psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", db.URL)
	command.Stdin = strings.NewReader(script)
	text, err := command.CombinedOutput()
	return string(text), err
}

// statements cuts a script where a line ends with a semicolon outside of dollar quotes, as other tools do.
func statements(script string) (list []string) {
	var statement strings.Builder
	quote := ""
	for line := range strings.Lines(script) {
		statement.WriteString(line)
		for _, mark := range []string{"$$", "$adopt$", "$indexes$", "$set$", "$off$"} {
			if strings.Count(line, mark)%2 == 1 {
				if quote == "" {
					quote = mark
				} else if quote == mark {
					quote = ""
				}
			}
		}
		if quote == "" && strings.HasSuffix(line, ";\n") {
			list = append(list, statement.String())
			statement.Reset()
		}
	}
	return list
}

func TestSQL(t *testing.T) {
	t.Parallel()
	script, err := migrations.SQL()
	if err != nil {
		t.Fatal(err)
	}
	migrated := pgtest.EmptyDatabase(t)
	exec(t, migrated, "CREATE SCHEMA events")
	up(t, migrated)
	exec(t, migrated, "DROP TABLE "+migrations.Table)
	want := catalog(t, migrated)

	ways := map[string]func(t *testing.T, db *pgtest.DB){
		"by psql": func(t *testing.T, db *pgtest.DB) {
			if output, err := withPSQL(t.Context(), t, db, script); err != nil {
				t.Fatalf("psql: %v\n%s", err, output)
			}
		},
		"statement by statement": func(t *testing.T, db *pgtest.DB) { exec(t, db, statements(script)...) },
	}
	for name, run := range ways {
		t.Run("makes the schema that Up makes, "+name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.EmptyDatabase(t)
			run(t, db)
			assertCatalog(t, want, catalog(t, db))

			up(t, db) // recognises it and has nothing to do
			assertCatalog(t, want, catalog(t, db))
		})
	}

	t.Run("is left to the tool that ran it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		exec(t, db, statements(script)...)
		exec(t, db, "CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT 7'")
		before := catalog(t, db)
		_, down := migrations.Down(t.Context(), config(t, db))
		_, status := migrations.Status(t.Context(), config(t, db))
		for what, err := range map[string]error{
			"Up": migrations.Up(t.Context(), config(t, db), nil), "Down": down, "Status": status,
			"DownAll": migrations.DownAll(t.Context(), config(t, db)),
		} {
			if !errors.Is(err, migrations.ErrForeignTool) {
				t.Errorf("%s: %v, want ErrForeignTool", what, err)
			}
			assertOneLine(t, err, "schema version 7", "another migration tool")
		}
		assertCatalog(t, before, catalog(t, db))
	})

	t.Run("stops at a table that differs", func(t *testing.T) {
		t.Parallel()
		db := specified(t)
		exec(t, db, "ALTER TABLE events.outbox DROP COLUMN payload")
		before := catalog(t, db)
		output, err := withPSQL(t.Context(), t, db, script)
		if err == nil || !strings.Contains(output, "column payload is missing") {
			t.Errorf("psql: %v\n%s", err, output)
		}
		assertCatalog(t, before, catalog(t, db))
	})

	t.Run("leaves no lock_timeout to the indexes that wait for old transactions, and none to the session", func(t *testing.T) {
		t.Parallel()
		timeout := false
		for line := range strings.Lines(script) {
			switch {
			case strings.HasPrefix(line, "SET lock_timeout"):
				timeout = true
			case strings.HasPrefix(line, "RESET lock_timeout"):
				timeout = false
			case strings.HasPrefix(line, "CREATE INDEX CONCURRENTLY") && timeout:
				t.Errorf("under a lock_timeout: %s", line)
			}
		}
		if timeout {
			t.Error("the session is left with a lock_timeout")
		}
		if !slices.ContainsFunc(statements(script), func(s string) bool { return strings.Contains(s, "SET lock_timeout = '3s'") }) {
			t.Error("no statement is under a lock_timeout")
		}
	})
}
