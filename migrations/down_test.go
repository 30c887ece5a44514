package migrations_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

func TestDown(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	empty := catalog(t, db)
	steps, err := migrations.Status(t.Context(), config(t, db))
	if err != nil {
		t.Fatal(err)
	}

	// Twice, so that each version is also compared with what it was before it was taken back and applied again.
	var at [migrations.Latest + 1][]string
	at[0] = empty
	for range 2 {
		up(t, db)
		for version := migrations.Latest; version > 0; version-- {
			if got := query[int](t, db, "SELECT events.outbox_schema_version()"); got != version {
				t.Fatalf("the schema says that it is version %d, want %d", got, version)
			}
			now := catalog(t, db)
			if at[version] != nil {
				assertCatalog(t, at[version], now)
			}
			at[version] = now
			name, err := migrations.Down(t.Context(), config(t, db))
			if err != nil {
				t.Fatalf("down from version %d: %v", version, err)
			}
			if want := steps[version-1].Name; name != want {
				t.Errorf("took back %s, want %s", name, want)
			}
			if slices.Equal(now, catalog(t, db)) {
				t.Errorf("%s changed nothing", name)
			}
		}
		assertCatalog(t, empty, catalog(t, db))
	}

	if _, err := migrations.Down(t.Context(), config(t, db)); !errors.Is(err, migrations.ErrNotMigrated) {
		t.Errorf("in an empty database: %v, want ErrNotMigrated", err)
	}
}

func TestDownAll(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		before []string // Up
		after  []string // Up, and before DownAll
		left   []string // statements that show what DownAll must leave
	}{
		"leaves no trace": {after: []string{insert}},
		"keeps a schema that was there before": {
			before: []string{"CREATE SCHEMA events"},
			left:   []string{"DROP SCHEMA events"},
		},
		"keeps a schema with other tables in it": {
			before: []string{"CREATE SCHEMA events", "CREATE TABLE events.audit (id BIGINT)"},
			left:   []string{"DROP TABLE events.audit", "DROP SCHEMA events"},
		},
		"keeps a schema that was made here and has got another table": {
			after: []string{"CREATE TABLE events.audit (id BIGINT)"},
			left:  []string{"DROP TABLE events.audit", "DROP SCHEMA events"},
		},
		"removes what an interrupted first migration left behind": {
			after: []string{
				"DROP FUNCTION events.outbox_schema_version()", "DROP TABLE events.outbox_delivery, events.outbox, events.outbox_meta",
				"DROP FUNCTION events.outbox_notify, events.outbox_set_notify, events.outbox_notify_mode, events.outbox_close_gate, events.outbox_keep_published, events.outbox_keep_retry_count",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.EmptyDatabase(t)
			empty := catalog(t, db)
			exec(t, db, c.before...)
			up(t, db)
			exec(t, db, c.after...)
			if err := migrations.DownAll(t.Context(), config(t, db)); err != nil && !errors.Is(err, migrations.ErrNotMigrated) {
				t.Fatal(err)
			}
			exec(t, db, c.left...)
			assertCatalog(t, empty, catalog(t, db))
			up(t, db)
		})
	}

	t.Run("says that there is nothing to take back", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		if err := migrations.DownAll(t.Context(), config(t, db)); !errors.Is(err, migrations.ErrNotMigrated) {
			t.Errorf("%v, want ErrNotMigrated", err)
		}
	})
}
