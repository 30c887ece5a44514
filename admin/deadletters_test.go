package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestShow(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	blocking := add(t, db, 1, isRetrying)
	id := add(t, db, 1, isPending)
	add(t, db, 1, isPublished)
	add(t, db, 1, isDead)
	add(t, db, 2, isPending)
	exec(t, db, "INSERT INTO events.outbox_delivery (outbox_id, subscriber, dead) VALUES ($1, 'mail', false), ($1, 'crm', true)", blocking)

	d, err := admin.Show(t.Context(), db.Pool, id)
	if err != nil {
		t.Fatal(err)
	}
	if d.State != admin.Pending || d.BlockedBy != blocking || d.LaterWaiting != 0 || d.LaterPublished != 1 || len(d.Deliveries) != 0 {
		t.Errorf("%+v", d)
	}
	if !strings.Contains(string(d.Payload), "12345678901234567890") {
		t.Errorf("payload %s: a digit is lost", d.Payload)
	}
	if d, err = admin.Show(t.Context(), db.Pool, blocking); err != nil {
		t.Fatal(err)
	}
	if d.State != admin.Retrying || d.BlockedBy != 0 || d.LaterWaiting != 1 || d.NextRetryAt == nil || d.LastError != "no route" || d.RetryCount != 1 {
		t.Errorf("%+v", d)
	}
	if len(d.Deliveries) != 2 || d.Deliveries[0].Subscriber != "crm" || !d.Deliveries[0].Dead || d.Deliveries[1].Dead || d.Deliveries[1].At.IsZero() {
		t.Errorf("deliveries %+v", d.Deliveries)
	}
	if _, err := admin.Show(t.Context(), db.Pool, 4711); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("an unknown id: %v", err)
	}

	exec(t, db, "UPDATE events.outbox SET occurred_at = '-infinity' WHERE id = $1", id)
	if d, err := admin.Show(t.Context(), db.Pool, id); err != nil || !d.OccurredAt.IsZero() {
		t.Errorf("occurred at -infinity: %+v, %v", d, err)
	}
}

// states returns the state of every event, by id.
func states(t *testing.T, db *pgtest.DB) map[int64]admin.State {
	t.Helper()
	events, err := admin.List(t.Context(), db.Pool, admin.Filter{State: admin.All}, admin.Page{Limit: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	of := make(map[int64]admin.State)
	for _, e := range events {
		of[e.ID] = e.State
	}
	return of
}

// losing is a session that loses the answer to each COMMIT.
type losing struct{ *pgx.Conn }

func (l losing) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := l.Conn.Begin(ctx)
	return losingTx{tx}, err
}

type losingTx struct{ pgx.Tx }

func (l losingTx) Commit(ctx context.Context) error {
	return errors.Join(l.Tx.Commit(ctx), io.ErrUnexpectedEOF)
}

// find returns the ids of the events that match.
func find(t *testing.T, db admin.DB, f admin.Filter) []int64 {
	t.Helper()
	ids, err := admin.IDs(t.Context(), db, f)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestRedrive(t *testing.T) {
	t.Parallel()

	t.Run("dead letters are due, in the order of their ids, with their counts", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var ids []int64
		for range 5 {
			ids = append(ids, add(t, db, 1, isDead))
		}
		add(t, db, 1, isPublished)
		add(t, db, 1, isPublished)
		add(t, db, 2, isDead) // not chosen
		listening := db.Connect(t)
		if _, err := listening.Exec(t.Context(), "LISTEN "+pgnames.RetryChannel); err != nil {
			t.Fatal(err)
		}

		done, err := admin.Redrive(t.Context(), db.Pool, []int64{ids[3], ids[0], ids[3], ids[1], ids[2]})
		if err != nil || done.Events != 4 {
			t.Fatalf("%+v, %v", done, err)
		}
		if want := map[int64]int64{ids[0]: 2, ids[1]: 2, ids[2]: 2, ids[3]: 2}; !maps.Equal(done.Overtaken, want) {
			t.Errorf("overtaken %v, want %v", done.Overtaken, want)
		}
		if _, err := listening.WaitForNotification(t.Context()); err != nil {
			t.Errorf("nobody is woken: %v", err)
		}
		due := value[[]int64](t, db, "SELECT array_agg(id ORDER BY next_retry_at, id DESC) FROM events.outbox WHERE next_retry_at <= now() AND retry_count = 10")
		if !slices.Equal(due, ids[:4]) {
			t.Errorf("due are %v, want %v", due, ids[:4])
		}
	})

	t.Run("if one is no dead letter, nothing is changed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		dead, pending, retrying, published := add(t, db, 1, isDead), add(t, db, 2, isPending), add(t, db, 3, isRetrying), add(t, db, 4, isPublished)
		before := states(t, db)
		_, err := admin.Redrive(t.Context(), db.Pool, []int64{dead, pending, retrying, published, 4711})
		wrong, ok := errors.AsType[*admin.NotDeadError](err)
		if !ok || !slices.Equal(wrong.Missing, []int64{4711}) ||
			!maps.Equal(wrong.Other, map[int64]admin.State{pending: admin.Pending, retrying: admin.Retrying, published: admin.Published}) {
			t.Errorf("%v", err)
		}
		if after := states(t, db); !maps.Equal(before, after) {
			t.Errorf("states were %v, are %v", before, after)
		}
	})

	t.Run("all that match are redriven, also in several batches", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		exec(t, db, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at)
			SELECT 'order', gen_random_uuid(), CASE WHEN i % 2 = 0 THEN 'Placed' ELSE 'Paid' END, '{}', 10, 'infinity' FROM generate_series(1, 2400) i`)
		done, err := admin.RedriveAny(t.Context(), db.Pool, find(t, db.Pool, admin.Filter{State: admin.Dead, EventType: "Paid"}))
		if err != nil || done.Events != 1200 || len(done.Overtaken) != 0 {
			t.Fatalf("%+v, %v", done, err)
		}
		if n := value[int](t, db, "SELECT count(*) FROM events.outbox WHERE event_type = 'Paid' AND next_retry_at <= now()"); n != 1200 {
			t.Errorf("%d are due", n)
		}
		if n := value[int](t, db, "SELECT count(DISTINCT next_retry_at) FROM events.outbox WHERE next_retry_at <= now()"); n != 1200 {
			t.Errorf("they have %d different times, want one each", n)
		}
		if n := value[int](t, db, "SELECT count(*) FROM events.outbox WHERE event_type = 'Placed' AND next_retry_at = 'infinity'"); n != 1200 {
			t.Errorf("%d others are dead, want them all", n)
		}
	})

	t.Run("those that an earlier event holds back are named", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		blocking, free := add(t, db, 1, isRetrying), add(t, db, 2, isDead)
		first, second := add(t, db, 1, isDead), add(t, db, 1, isDead)
		due := add(t, db, 3, "retry_count = 1, next_retry_at = now()") // and so soon out of the way
		behind := add(t, db, 3, isDead)
		done, err := admin.Redrive(t.Context(), db.Pool, []int64{free, first, second, behind})
		if want := map[int64]int64{first: blocking, second: blocking}; err != nil || !maps.Equal(done.Waiting, want) {
			t.Errorf("%v (%v), want %v; %d is due", done.Waiting, err, want, due)
		}
	})

	t.Run("an event that somebody has locked is not waited for without end", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		dead := add(t, db, 1, isDead)
		tx, err := db.Connect(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT FROM events.outbox WHERE id = $1 FOR UPDATE", dead); err != nil {
			t.Fatal(err)
		}
		_, err = admin.Redrive(t.Context(), db.Pool, []int64{dead})
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55P03" {
			t.Errorf("%v, want lock_not_available", err)
		}
	})

	t.Run("where the answer to COMMIT is lost, that is said", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		dead := add(t, db, 1, isDead)
		if _, err := admin.Redrive(t.Context(), losing{db.Connect(t)}, []int64{dead}); !errors.Is(err, admin.ErrUncertain) {
			t.Errorf("%v, want that it is uncertain", err)
		}
		if got := states(t, db)[dead]; got != admin.Retrying {
			t.Errorf("it is %s", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := admin.Discard(ctx, db.Pool, []int64{add(t, db, 2, isDead)}, func(context.Context, pgx.Tx, []int64) error {
			cancel() // before it commits
			return nil
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, admin.ErrUncertain) {
			t.Errorf("%v, want that it was interrupted", err)
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = admin.Discard(t.Context(), db.Pool, []int64{add(t, db, 3, isDead)}, func(context.Context, pgx.Tx, []int64) error { panic("a slip") })
			t.Error("no panic")
		}()
		if n := db.Pool.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%d sessions are still out", n)
		}
	})

	t.Run("what has died since they were found is left alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		younger, found := add(t, db, 1, isPending), add(t, db, 2, isDead)
		ids := find(t, db.Pool, admin.Filter{State: admin.Dead})
		exec(t, db, fmt.Sprintf("UPDATE events.outbox SET %s WHERE id = %d", isDead, younger))
		if done, err := admin.RedriveAny(t.Context(), db.Pool, ids); err != nil || done.Events != 1 {
			t.Errorf("%+v, %v", done, err)
		}
		if got := states(t, db); got[younger] != admin.Dead || got[found] != admin.Retrying {
			t.Errorf("%v", got)
		}
	})

	t.Run("within a transaction of the caller's it can be taken back", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		dead := add(t, db, 1, isDead)
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if done, err := admin.RedriveAny(t.Context(), tx, find(t, tx, admin.Filter{})); err != nil || done.Events != 1 {
			t.Errorf("%+v, %v", done, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := states(t, db)[dead]; got != admin.Dead {
			t.Errorf("it is %s", got)
		}
	})
}

func TestDiscard(t *testing.T) {
	t.Parallel()

	// line is a kept event.
	type line struct {
		ID         int64           `json:"id"`
		Payload    json.RawMessage `json:"payload"`
		Region     string          `json:"region"`
		Deliveries []admin.Delivery
	}
	parse := func(t *testing.T, text []byte) (lines []line) {
		t.Helper()
		for l := range bytes.Lines(text) {
			var one line
			if err := json.Unmarshal(l, &one); err != nil {
				t.Fatalf("%s: %v", l, err)
			}
			lines = append(lines, one)
		}
		return lines
	}

	t.Run("events are kept whole before they are deleted", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		exec(t, db, "ALTER TABLE events.outbox ADD COLUMN region TEXT DEFAULT 'eu'") // of the service
		for range 30 {
			add(t, db, 1, isDead)
		}
		first, other := add(t, db, 2, isDead), add(t, db, 3, isDead)
		exec(t, db, "INSERT INTO events.outbox_delivery (outbox_id, subscriber) VALUES ($1, 'mail')", first)
		var plain bytes.Buffer
		if n, err := admin.Discard(t.Context(), db.Pool, []int64{first, first}, admin.KeepLines(&plain)); err != nil || n != 1 {
			t.Fatalf("%d, %v", n, err)
		}
		lines := parse(t, plain.Bytes())
		if len(lines) != 1 || lines[0].ID != first || lines[0].Region != "eu" || len(lines[0].Deliveries) != 1 || !strings.Contains(string(lines[0].Payload), "12345678901234567890") {
			t.Errorf("kept %s", plain.Bytes())
		}
		var rest bytes.Buffer
		if n, err := admin.DiscardAny(t.Context(), db.Pool, find(t, db.Pool, admin.Filter{}), admin.KeepLines(&rest)); err != nil || n != 31 {
			t.Fatalf("%d, %v", n, err)
		}
		if lines := parse(t, rest.Bytes()); len(lines) != 31 || lines[30].ID != other {
			t.Errorf("%d lines are kept", len(lines))
		}
		if left := states(t, db); len(left) != 0 {
			t.Errorf("left are %v", left)
		}
	})

	t.Run("a table keeps rows that can be put back", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		for range 2 { // it is made once
			id := add(t, db, 1, isDead)
			row := value[string](t, db, "SELECT to_jsonb(o)::text FROM events.outbox o WHERE id = $1", id)
			if n, err := admin.Discard(t.Context(), db.Pool, []int64{id}, admin.KeepTable(pgx.Identifier{"public", `odd "name"`})); err != nil || n != 1 {
				t.Fatalf("%d, %v", n, err)
			}
			exec(t, db, `INSERT INTO events.outbox SELECT (jsonb_populate_record(NULL::events.outbox, event)).* FROM public."odd ""name""" WHERE id = $1`, id)
			if again := value[string](t, db, "SELECT to_jsonb(o)::text FROM events.outbox o WHERE id = $1", id); again != row {
				t.Errorf("put back: %s, was %s", again, row)
			}
		}
		if n := value[int](t, db, `SELECT count(*) FROM public."odd ""name""" WHERE kept_at <= now() AND kept_by = session_user`); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
	})

	t.Run("a table that does not take them is no place", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		dead := add(t, db, 1, isDead)
		exec(t, db, `CREATE TABLE dropping (id BIGINT, event JSONB);
			CREATE FUNCTION drop_it() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER t BEFORE INSERT ON dropping FOR EACH ROW EXECUTE FUNCTION drop_it();
			CREATE TABLE nothing (id BIGINT, event JSONB);
			CREATE RULE r AS ON INSERT TO nothing DO INSTEAD NOTHING;
			CREATE TABLE other (id BIGINT);
			CREATE TABLE wrong (id BIGINT, event INTEGER);
			CREATE SEQUENCE counts`)
		for table, want := range map[string]string{
			"public.dropping": "took 0 of 1 events: look at its triggers",
			"public.nothing":  "took 0 of 1 events: look at its triggers",
			"public.other":    "is not a table of kept events, which has the columns id BIGINT and event JSONB",
			"public.wrong":    "is not a table of kept events",
			"public.counts":   "public", // PostgreSQL has its own words for each kind
			"lost.events":     `schema "lost" does not exist`,
		} {
			_, err := admin.Discard(t.Context(), db.Pool, []int64{dead}, admin.KeepTable(strings.Split(table, ".")))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", table, err, want)
			}
		}
		if got := states(t, db)[dead]; got != admin.Dead {
			t.Errorf("it is %s", got)
		}
	})

	t.Run("times are kept in UTC, whatever the session's zone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), "SET TimeZone = 'Asia/Kolkata'"); err != nil {
			t.Fatal(err)
		}
		var kept bytes.Buffer
		if _, err := admin.Discard(t.Context(), conn, []int64{add(t, db, 1, isDead)}, admin.KeepLines(&kept)); err != nil {
			t.Fatal(err)
		}
		add(t, db, 1, isOld)
		if n, err := admin.Archive(t.Context(), conn, admin.ArchiveOptions{Keep: admin.KeepLines(&kept)}); err != nil || n.Events != 1 {
			t.Fatal(n, err)
		}
		if n := strings.Count(kept.String(), `+00:00"`); n != 3 || strings.Contains(kept.String(), "+05:30") {
			t.Errorf("kept %s", kept.String())
		}
	})

	t.Run("a line puts an event back as docs/operations.md says", func(t *testing.T) {
		t.Parallel()
		text, err := os.ReadFile("../docs/operations.md")
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(string(text), "\n## Putting an event back\n")
		create := regexp.MustCompile(`(?m)^CREATE TEMP TABLE.*;$`).FindString(section)
		copying := regexp.MustCompile(`(?m)^\\(copy kept \(event\)) FROM PROGRAM '.*' (WITH .*)$`).FindStringSubmatch(section)
		insert := regexp.MustCompile("(?s)```sql\n(INSERT.*?)```").FindStringSubmatch(section)
		insertNull := regexp.MustCompile("(?s)```sql\n(BEGIN;.*?COMMIT;\n)```").FindStringSubmatch(section)
		if create == "" || copying == nil || insert == nil || insertNull == nil {
			t.Fatalf("%q, %q, %q, %q", create, copying, insert, insertNull)
		}
		db := pgtest.Database(t)
		other, id, null := add(t, db, 1, isDead), add(t, db, 1, isDead), add(t, db, 1, isDead+", payload = 'null'")
		exec(t, db, `UPDATE events.outbox SET payload = '{"odd": "\\u0001, \\\\ and \"quotes\" 1e400"}', last_error = E'a\nb\t\\.' WHERE id = $1`, id)
		row := value[string](t, db, "SELECT to_jsonb(o)::text FROM events.outbox o WHERE id = $1", id)
		var lines bytes.Buffer
		before := strings.Replace(row, `"a\n`, `"before\n`, 1)
		fmt.Fprintln(&lines, before) // kept before it was put back for the first time
		rowOfNull := value[string](t, db, "SELECT to_jsonb(o)::text FROM events.outbox o WHERE id = $1", null)
		if n, err := admin.Discard(t.Context(), db.Pool, []int64{other, id, null}, admin.KeepLines(&lines)); err != nil || n != 3 || before == row {
			t.Fatalf("%d, %v", n, err)
		}
		err = db.Pool.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error {
			if _, err := conn.Exec(t.Context(), create); err != nil {
				return err
			}
			if _, err := conn.Conn().PgConn().CopyFrom(t.Context(), &lines, copying[1]+" FROM STDIN "+copying[2]); err != nil {
				return err
			}
			for _, q := range []string{strings.ReplaceAll(insert[1], "4711", fmt.Sprint(id)), strings.ReplaceAll(insertNull[1], "4711", fmt.Sprint(null))} {
				if _, err := conn.Conn().PgConn().Exec(t.Context(), q).ReadAll(); err != nil {
					return fmt.Errorf("%s: %w", q, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := row + "\n" + rowOfNull
		if again := value[string](t, db, `SELECT string_agg(to_jsonb(o)::text, E'\n' ORDER BY id) FROM events.outbox o`); again != want {
			t.Errorf("put back: %s, was %s", again, want)
		}
	})

	t.Run("what cannot be kept is not deleted", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		for range 3 {
			add(t, db, 1, isDead)
		}
		full := errors.New("disk full")
		keep := func(ctx context.Context, tx pgx.Tx, ids []int64) error { return full }
		if n, err := admin.DiscardAny(t.Context(), db.Pool, find(t, db.Pool, admin.Filter{}), keep); n != 0 || !errors.Is(err, full) {
			t.Errorf("%d, %v", n, err)
		}
		if _, err := admin.DiscardAny(t.Context(), db.Pool, find(t, db.Pool, admin.Filter{}), nil); err == nil {
			t.Error("nothing keeps them, and there is no error")
		}
		if left := states(t, db); len(left) != 3 {
			t.Errorf("left are %v", left)
		}
	})

	t.Run("only dead letters are deleted", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		dead := add(t, db, 1, isDead)
		for _, state := range []string{isPending, isRetrying, isPublished} {
			add(t, db, 2, state)
		}
		var kept bytes.Buffer
		n, err := admin.DiscardAny(t.Context(), db.Pool, find(t, db.Pool, admin.Filter{State: admin.All, NewerThan: time.Hour}), admin.KeepLines(&kept))
		if err != nil || n != 1 {
			t.Errorf("%d, %v", n, err)
		}
		if left := states(t, db); len(left) != 3 || left[dead] != "" {
			t.Errorf("left are %v", left)
		}
		if _, err := admin.Discard(t.Context(), db.Pool, slices.Collect(maps.Keys(states(t, db))), admin.KeepLines(&kept)); err == nil {
			t.Error("others were discarded")
		}
	})
}
