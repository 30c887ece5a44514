package migrations_test

import (
	"errors"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

// specified returns a database with the table as a service made it by the specification.
func specified(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.EmptyDatabase(t)
	exec(t, db, "CREATE SCHEMA events", specification)
	return db
}

// events lists all rows, without those columns that adoption may change.
func events(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	return query[string](t, db, `SELECT COALESCE(json_agg(to_jsonb(o) - 'next_retry_at' ORDER BY id), '[]')::text FROM events.outbox o`)
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	db := specified(t)
	exec(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, published_at, retry_count, next_retry_at)
		SELECT kind, gen_random_uuid(), 'Placed', '{"version": 1, "data": {}}', published_at, retry_count, next_retry_at
		FROM (VALUES
			('pending',              NULL::timestamptz, 0,  NULL::timestamptz),
			('retrying',             NULL,              9,  now() + interval '1 hour'),
			('dead',                 NULL,              10, now() - interval '1 hour'),
			('dead without a retry', NULL,              11, NULL),
			('published',            now(),             0,  NULL),
			('published late',       now(),             12, now() - interval '1 hour')
		) AS v (kind, published_at, retry_count, next_retry_at)`)
	before, rows := catalog(t, db), events(t, db)
	up(t, db)

	t.Run("keeps every row", func(t *testing.T) {
		if after := events(t, db); after != rows {
			t.Errorf("rows were\n%s\nand are\n%s", rows, after)
		}
		if adopted := query[bool](t, db, "SELECT adopted FROM events.outbox_meta"); !adopted {
			t.Error("the table does not count as adopted")
		}
	})

	t.Run("makes a dead letter of what has used up its attempts and is not published", func(t *testing.T) {
		got := query[string](t, db, "SELECT string_agg(aggregate_type, ', ' ORDER BY id) FROM events.outbox WHERE next_retry_at = 'infinity'")
		if want := "dead, dead without a retry"; got != want {
			t.Errorf("dead letters are %q, want %q", got, want)
		}
	})

	t.Run("does so once: a redriven event stays redriven", func(t *testing.T) {
		exec(t, db, "UPDATE events.outbox SET next_retry_at = now() WHERE aggregate_type = 'dead'")
		up(t, db)
		if dead := query[bool](t, db, "SELECT next_retry_at = 'infinity' FROM events.outbox WHERE aggregate_type = 'dead'"); dead {
			t.Error("it is dead again")
		}
	})

	t.Run("adds to the table what the outbox needs", func(t *testing.T) {
		fresh := pgtest.EmptyDatabase(t)
		exec(t, fresh, "CREATE SCHEMA events")
		up(t, fresh)
		assertCatalog(t, catalog(t, fresh), catalog(t, db))
	})

	t.Run("gives the table back with its rows", func(t *testing.T) {
		if err := migrations.DownAll(t.Context(), config(t, db)); err != nil {
			t.Fatal(err)
		}
		assertCatalog(t, before, catalog(t, db))
		if after := events(t, db); after != rows {
			t.Errorf("rows were\n%s\nand are\n%s", rows, after)
		}
	})
}

func TestAdoptAfterRefusal(t *testing.T) {
	t.Parallel()
	db := specified(t)
	exec(t, db, "ALTER TABLE events.outbox DROP COLUMN payload")
	if err := migrations.Up(t.Context(), config(t, db), nil); !errors.Is(err, migrations.ErrDifferentTable) {
		t.Fatalf("%v, want ErrDifferentTable", err)
	}
	exec(t, db, "DROP TABLE events.outbox")
	up(t, db)
	if adopted := query[bool](t, db, "SELECT adopted FROM events.outbox_meta"); adopted {
		t.Error("the table counts as adopted because of one that was refused before")
	}
}

// TestAdoptRefuses changes the specification's table in one way each. Nothing may be changed by a refusal, goose's
// record included.
func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	const table = "ALTER TABLE events.outbox "
	cases := map[string]struct{ change, want string }{
		"a missing column":                     {table + "DROP COLUMN last_error", "column last_error is missing"},
		"a missing id":                         {table + "DROP COLUMN id", "column id is missing"},
		"another type":                         {table + "ALTER aggregate_id TYPE text", "column aggregate_id is text NOT NULL, not uuid NOT NULL"},
		"a type with a length":                 {table + "ALTER event_type TYPE varchar(50)", "column event_type is character varying(50) NOT NULL, not text NOT NULL"},
		"json instead of jsonb":                {table + "ALTER payload TYPE json", "column payload is json NOT NULL, not jsonb NOT NULL"},
		"a time without a zone":                {table + "ALTER published_at TYPE timestamp", "column published_at is timestamp without time zone, not timestamp with time zone"},
		"an id of 32 bits":                     {table + "ALTER id TYPE integer", "column id is integer NOT NULL, not bigint NOT NULL"},
		"a missing NOT NULL":                   {table + "ALTER payload DROP NOT NULL", "column payload is jsonb, not jsonb NOT NULL"},
		"a NOT NULL too many":                  {table + "ALTER last_error SET NOT NULL", "column last_error is text NOT NULL, not text"},
		"a missing default":                    {table + "ALTER occurred_at DROP DEFAULT", "column occurred_at has no DEFAULT, not DEFAULT now()"},
		"another default":                      {table + "ALTER retry_count SET DEFAULT 1", "column retry_count has DEFAULT 1, not DEFAULT 0"},
		"a default that publishes":             {table + "ALTER published_at SET DEFAULT now()", "column published_at has DEFAULT now(), not none"},
		"an id without a sequence":             {table + "ALTER id DROP DEFAULT", "column id does not count up from a sequence of its own (BIGSERIAL)"},
		"a sequence of another one":            {"CREATE SEQUENCE events.other; " + table + "ALTER id SET DEFAULT nextval('events.other')", "column id does not count up"},
		"a sequence that counts down":          {"ALTER SEQUENCE events.outbox_id_seq INCREMENT -1 MINVALUE -9 START -1 RESTART", "column id does not count up"},
		"a sequence that cycles":               {"ALTER SEQUENCE events.outbox_id_seq CYCLE", "column id does not count up"},
		"a column that publishers do not know": {table + "ADD tenant text NOT NULL", "column tenant is not in the specification, and NOT NULL without a default"},
		"a missing primary key":                {table + "DROP CONSTRAINT outbox_pkey", "the primary key is not (id)"},
		"another primary key":                  {table + "DROP CONSTRAINT outbox_pkey, ADD PRIMARY KEY (id, occurred_at)", "the primary key is not (id)"},
		"a deferrable primary key":             {table + "DROP CONSTRAINT outbox_pkey, ADD PRIMARY KEY (id) DEFERRABLE", "the primary key is not (id)"},
		"a missing check":                      {table + "DROP CONSTRAINT outbox_retry_nonneg", "CONSTRAINT outbox_retry_nonneg CHECK (retry_count >= 0) is missing"},
		"a check that was not done":            {table + "DROP CONSTRAINT outbox_retry_nonneg, ADD CONSTRAINT outbox_retry_nonneg CHECK (retry_count >= 0) NOT VALID", "CONSTRAINT outbox_retry_nonneg"},
		"a missing index":                      {"DROP INDEX events.outbox_retry_due_idx", "index outbox_retry_due_idx is missing: CREATE INDEX CONCURRENTLY outbox_retry_due_idx ON events.outbox USING btree (next_retry_at) WHERE ((published_at IS NULL) AND (next_retry_at IS NOT NULL))"},
		"an index on something else":           {"DROP INDEX events.outbox_aggregate_idx; CREATE INDEX outbox_aggregate_idx ON events.outbox (aggregate_id)", "index outbox_aggregate_idx is btree (aggregate_id), not btree (aggregate_type, aggregate_id, id)"},
		"an index that is not partial":         {"DROP INDEX events.outbox_unpublished_idx; CREATE INDEX outbox_unpublished_idx ON events.outbox (id)", "index outbox_unpublished_idx is btree (id), not btree (id) WHERE (published_at IS NULL)"},
		"an index that is unique":              {"DROP INDEX events.outbox_event_type_occurred_idx; CREATE UNIQUE INDEX outbox_event_type_occurred_idx ON events.outbox (event_type, occurred_at)", "index outbox_event_type_occurred_idx is UNIQUE btree"},
		"an index that is invalid":             {"UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'events.outbox_aggregate_idx'::regclass", "index outbox_aggregate_idx is invalid: REINDEX INDEX CONCURRENTLY events.outbox_aggregate_idx"},
		"an unlogged table":                    {table + "SET UNLOGGED", "it is UNLOGGED: a crash empties it"},
		"a table with children":                {"CREATE TABLE events.child () INHERITS (events.outbox)", "it is part of an inheritance or partition tree"},
		"a partition":                          {"CREATE TABLE events.parent (LIKE events.outbox) PARTITION BY RANGE (id); ALTER TABLE events.parent ATTACH PARTITION events.outbox DEFAULT", "it is part of an inheritance or partition tree"},
		"a partitioned table":                  {table + "RENAME TO part; CREATE TABLE events.outbox (LIKE events.part) PARTITION BY RANGE (id)", "it is not a table but a partitioned table"},
		"a view":                               {table + "RENAME TO stored; CREATE VIEW events.outbox AS SELECT * FROM events.stored", "it is not a table but a view"},
		"everything at once":                   {table + "DROP COLUMN payload, ALTER retry_count SET DEFAULT 1; DROP INDEX events.outbox_aggregate_idx", "column payload is missing; column retry_count has DEFAULT 1, not DEFAULT 0; index outbox_aggregate_idx is missing"},
	}
	db := pgtest.EmptyDatabase(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			exec(t, db, "DROP SCHEMA IF EXISTS events CASCADE", "CREATE SCHEMA events", specification, c.change)
			before := catalog(t, db)
			err := migrations.Up(t.Context(), config(t, db), nil)
			assertOneLine(t, err, "events.outbox exists and differs from the specification: ", c.want, "Nothing was changed")
			if !errors.Is(err, migrations.ErrDifferentTable) || sqlState(err) != "55000" {
				t.Errorf("%v is not ErrDifferentTable with SQLSTATE 55000", err)
			}
			assertCatalog(t, before, catalog(t, db))
		})
	}
}

// TestAdoptAccepts changes the specification's table in ways that change nothing for publishers and workers.
func TestAdoptAccepts(t *testing.T) {
	t.Parallel()
	const table = "ALTER TABLE events.outbox "
	cases := map[string]string{
		"an identity column": "ALTER TABLE events.outbox ALTER id DROP DEFAULT; DROP SEQUENCE events.outbox_id_seq; " +
			table + "ALTER id ADD GENERATED BY DEFAULT AS IDENTITY",
		"an identity column that is always generated": "ALTER TABLE events.outbox ALTER id DROP DEFAULT; DROP SEQUENCE events.outbox_id_seq; " +
			table + "ALTER id ADD GENERATED ALWAYS AS IDENTITY",
		"a sequence of another name":            "ALTER SEQUENCE events.outbox_id_seq RENAME TO counter",
		"the standard's name for now()":         table + "ALTER occurred_at SET DEFAULT CURRENT_TIMESTAMP",
		"a further column":                      table + "ADD note text, ADD tenant text NOT NULL DEFAULT 'none', ADD size int NOT NULL GENERATED ALWAYS AS (octet_length(event_type)) STORED",
		"a further identity column":             table + "ADD number bigint GENERATED ALWAYS AS IDENTITY",
		"a default that publishers do not take": table + "ALTER payload SET DEFAULT '{}'",
		"a further index":                       "CREATE INDEX by_time ON events.outbox (occurred_at)",
		"an index with room":                    "DROP INDEX events.outbox_unpublished_idx; CREATE INDEX outbox_unpublished_idx ON events.outbox (id) WITH (fillfactor = 70) WHERE published_at IS NULL",
		"a check of another name":               table + "RENAME CONSTRAINT outbox_retry_nonneg TO nonneg",
		"another owner":                         table + "OWNER TO CURRENT_USER",
	}
	db := pgtest.EmptyDatabase(t)
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			exec(t, db, "DROP SCHEMA IF EXISTS events CASCADE", "CREATE SCHEMA events", specification, change)
			up(t, db)
			exec(t, db, insert)
			if query[string](t, db, "SELECT pg_get_serial_sequence('events.outbox', 'id')") == "" {
				t.Error("the id's sequence is not found")
			}
		})
	}
}
