package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

var (
	_ outbox.Querier    = pgx.Tx(nil)
	_ outbox.Querier    = (*pgx.Conn)(nil)
	_ outbox.Querier    = (*pgxpool.Pool)(nil)
	_ outbox.Querier    = (*pgxpool.Conn)(nil)
	_ outbox.SQLQuerier = (*sql.Tx)(nil)
	_ outbox.SQLQuerier = (*sql.DB)(nil)
	_ outbox.SQLQuerier = (*sql.Conn)(nil)
	_ outbox.SQLQuerier = embeds{} // the shape of sqlx.Tx
)

type embeds struct{ *sql.Tx }

// session publishes in one transaction of one driver.
type session struct {
	publish  func(context.Context, outbox.Message) (int64, error)
	batch    func(context.Context, []outbox.Message) ([]int64, error)
	publicID func(context.Context, int64) (uuid.UUID, error)
	commit   func(context.Context) error
	rollback func(context.Context) error
}

// drivers are the ways to the database that must all behave alike.
var drivers = map[string]func(t *testing.T, url string) session{
	"pgx": func(t *testing.T, url string) session { return beginPGX(t, url, pgx.QueryExecModeCacheStatement) },
	"pgx cache_describe": func(t *testing.T, url string) session {
		return beginPGX(t, url, pgx.QueryExecModeCacheDescribe)
	},
	"pgx describe_exec": func(t *testing.T, url string) session {
		return beginPGX(t, url, pgx.QueryExecModeDescribeExec)
	},
	"pgx exec": func(t *testing.T, url string) session { return beginPGX(t, url, pgx.QueryExecModeExec) },
	"pgx simple_protocol": func(t *testing.T, url string) session {
		return beginPGX(t, url, pgx.QueryExecModeSimpleProtocol)
	},
	"database/sql over pgx": func(t *testing.T, url string) session { return beginSQL(t, "pgx", url) },
	"database/sql over pgx, simple_protocol": func(t *testing.T, url string) session {
		return beginSQL(t, "pgx", withParameter(url, "default_query_exec_mode=simple_protocol"))
	},
	"database/sql over lib/pq": func(t *testing.T, url string) session { return beginSQL(t, "postgres", url) },
	"database/sql over lib/pq, binary_parameters": func(t *testing.T, url string) session {
		return beginSQL(t, "postgres", withParameter(url, "binary_parameters=yes"))
	},
}

func withParameter(url, parameter string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameter
	}
	return url + "?" + parameter
}

func beginPGX(t *testing.T, url string, mode pgx.QueryExecMode) session {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return session{
		publish: func(ctx context.Context, m outbox.Message) (int64, error) { return outbox.Publish(ctx, tx, m) },
		batch: func(ctx context.Context, ms []outbox.Message) ([]int64, error) {
			return outbox.PublishBatch(ctx, tx, ms)
		},
		publicID: func(ctx context.Context, id int64) (uuid.UUID, error) { return outbox.LookupPublicID(ctx, tx, id) },
		commit:   tx.Commit,
		rollback: tx.Rollback,
	}
}

func beginSQL(t *testing.T, driver, url string) session {
	t.Helper()
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return session{
		publish: func(ctx context.Context, m outbox.Message) (int64, error) { return outbox.PublishSQL(ctx, tx, m) },
		batch: func(ctx context.Context, ms []outbox.Message) ([]int64, error) {
			return outbox.PublishBatchSQL(ctx, tx, ms)
		},
		publicID: func(ctx context.Context, id int64) (uuid.UUID, error) { return outbox.LookupPublicIDSQL(ctx, tx, id) },
		commit:   func(context.Context) error { return tx.Commit() },
		rollback: func(context.Context) error { return tx.Rollback() },
	}
}

// stored is what a test reads back.
type stored struct {
	aggregateType, eventType, payload string
	aggregateID                       uuid.UUID
	occurredAt                        time.Time
}

func read(t *testing.T, db outbox.Querier, id int64) stored {
	t.Helper()
	var s stored
	err := db.QueryRow(t.Context(), "SELECT aggregate_type, aggregate_id, event_type, payload::text, occurred_at FROM events.outbox WHERE id = $1", id).
		Scan(&s.aggregateType, &s.aggregateID, &s.eventType, &s.payload, &s.occurredAt)
	if err != nil {
		t.Fatalf("read event %d: %v", id, err)
	}
	s.occurredAt = s.occurredAt.UTC()
	return s
}

func count(t *testing.T, db outbox.Querier) int {
	t.Helper()
	var n int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM events.outbox").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

var orderID = uuid.MustParse("0198a3c4-7a52-7cc3-98c4-dc0c0c07398f")

func placed(data any) outbox.Message {
	return outbox.Message{AggregateType: "order", AggregateID: orderID, EventType: "OrderPlaced", Data: data}
}

// awkward holds what quoting or a detour through Go values would spoil.
var awkward = outbox.Message{
	AggregateType: `a "quoted" \ {type}, 'é' NULL`,
	AggregateID:   orderID,
	EventType:     "line\nbreak $1 ?",
	Data:          json.RawMessage(`{"n": [9007199254740993, 1.10, -0.5e-7], "s": "\"\\ '\u00e9\n\\u0000 $1 ?", "nested": {"": [[], {}, null]}}`),
	Version:       3,
	CorrelationID: `req "1"`,
	CausationID:   "11111111-1111-5111-8111-111111111111",
	TraceParent:   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	OccurredAt:    time.Date(2025, 3, 30, 2, 30, 0, 123456789, time.FixedZone("", 5*3600+1800)),
}

var awkwardStored = stored{
	aggregateType: awkward.AggregateType,
	aggregateID:   orderID,
	eventType:     awkward.EventType,
	payload: `{"data": {"n": [9007199254740993, 1.10, -0.00000005], "s": "\"\\ 'é\n\\u0000 $1 ?", "nested": {"": [[], {}, null]}}, ` +
		`"version": 3, "metadata": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", ` +
		`"causation_id": "11111111-1111-5111-8111-111111111111", "correlation_id": "req \"1\""}}`,
	occurredAt: time.Date(2025, 3, 29, 21, 0, 0, 123456000, time.UTC),
}

func TestPublish(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			t.Run("stores every field as it was given", func(t *testing.T) {
				s := begin(t, db.URL)
				id, err := s.publish(t.Context(), awkward)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := read(t, db.Pool, id); got != awkwardStored {
					t.Fatalf("got  %+v\nwant %+v", got, awkwardStored)
				}
			})
			t.Run("stores nothing if the transaction rolls back", func(t *testing.T) {
				s := begin(t, db.URL)
				id, err := s.publish(t.Context(), placed(1))
				if err != nil {
					t.Fatal(err)
				}
				ids, err := s.batch(t.Context(), []outbox.Message{placed(2), placed(3)})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				var left int
				err = db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM events.outbox WHERE id = ANY($1)", append(ids, id)).Scan(&left)
				if err != nil || left != 0 {
					t.Fatalf("%d events are left, %v", left, err)
				}
			})
			t.Run("goes on after a message that was rejected", func(t *testing.T) {
				s := begin(t, db.URL)
				if _, err := s.publish(t.Context(), placed("\x00")); !errors.Is(err, outbox.ErrInvalidMessage) {
					t.Fatalf("got %v", err)
				}
				id, err := s.publish(t.Context(), placed("fine"))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := read(t, db.Pool, id).payload; got != `{"data": "fine", "version": 1}` {
					t.Fatalf("got %s", got)
				}
			})
			t.Run("stores a batch as single messages", func(t *testing.T) {
				s := begin(t, db.URL)
				ids, err := s.batch(t.Context(), []outbox.Message{placed(nil), awkward, placed(`{"`)})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(ids) != 3 {
					t.Fatalf("got ids %v", ids)
				}
				if got := read(t, db.Pool, ids[0]).payload; got != `{"data": null, "version": 1}` {
					t.Fatalf("got %s", got)
				}
				if got := read(t, db.Pool, ids[1]); got != awkwardStored {
					t.Fatalf("got  %+v\nwant %+v", got, awkwardStored)
				}
				if got := read(t, db.Pool, ids[2]).payload; got != `{"data": "{\"", "version": 1}` {
					t.Fatalf("got %s", got)
				}
			})
			t.Run("finds the public id inside the transaction", func(t *testing.T) {
				s := begin(t, db.URL)
				id, err := s.publish(t.Context(), placed(1))
				if err != nil {
					t.Fatal(err)
				}
				got, err := s.publicID(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				var namespace uuid.UUID
				if err := db.Pool.QueryRow(t.Context(), "SELECT namespace FROM events.outbox_meta").Scan(&namespace); err != nil {
					t.Fatal(err)
				}
				if want := event.PublicID(namespace, id, read(t, db.Pool, id).occurredAt); got != want {
					t.Fatalf("got %s, want %s", got, want)
				}
			})
			t.Run("finds no public id of an unknown event", func(t *testing.T) {
				s := begin(t, db.URL)
				_, err := s.publicID(t.Context(), -7)
				if !errors.Is(err, sql.ErrNoRows) || !strings.Contains(err.Error(), "event -7") {
					t.Fatalf("got %v", err)
				}
				if err := s.rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestPublishOutsideATransactionCommitsAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	id, err := outbox.Publish(t.Context(), db.Connect(t), placed(1))
	if err != nil {
		t.Fatal(err)
	}
	read(t, db.Pool, id)
	if id, err = outbox.Publish(t.Context(), db.Pool, placed(1)); err != nil {
		t.Fatal(err)
	}
	read(t, db.Connect(t), id)
}

func TestOccurredAt(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	var now time.Time
	if err := tx.QueryRow(t.Context(), "SELECT now()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ given, want time.Time }{
		"defaults to the start of the transaction": {time.Time{}, now},
		"may be in the year 1":                     {time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)},
		"may be in the year 9999":                  {time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)},
		"is cut off at the microsecond":            {time.UnixMicro(-1).Add(999), time.UnixMicro(-1)},
	} {
		t.Run(name, func(t *testing.T) {
			m := placed(1)
			m.OccurredAt = tt.given
			id, err := outbox.Publish(t.Context(), tx, m)
			if err != nil {
				t.Fatal(err)
			}
			if got := read(t, tx, id).occurredAt; !got.Equal(tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			ids, err := outbox.PublishBatch(t.Context(), tx, []outbox.Message{m})
			if err != nil {
				t.Fatal(err)
			}
			if got := read(t, tx, ids[0]).occurredAt; !got.Equal(tt.want) {
				t.Errorf("in a batch: got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPublishInsideAHandlerNamesItsCause(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	handled := &event.Event{PublicID: uuid.New(), Metadata: event.Metadata{CorrelationID: "workflow"}}
	ids, err := outbox.PublishBatch(event.NewContext(t.Context(), handled), db.Pool, []outbox.Message{placed(1)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := event.ParseEnvelope([]byte(read(t, db.Pool, ids[0]).payload))
	if err != nil {
		t.Fatal(err)
	}
	if want := (event.Metadata{CausationID: handled.PublicID.String(), CorrelationID: "workflow"}); got.Metadata != want {
		t.Fatalf("got %+v, want %+v", got.Metadata, want)
	}
}

func TestPublishBatch(t *testing.T) {
	t.Parallel()

	t.Run("ids follow the order of the messages", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var publishers sync.WaitGroup
		for p := range 4 {
			publishers.Go(func() {
				messages := make([]outbox.Message, 1500)
				for i := range messages {
					messages[i] = placed(i)
					messages[i].AggregateType = fmt.Sprintf("publisher %d", p)
					// Neither the values nor the times are in the order of the messages.
					messages[i].AggregateID = uuid.New()
					messages[i].OccurredAt = time.Unix(rand.Int64N(1e9)+1, 0)
				}
				ids, err := outbox.PublishBatch(t.Context(), db.Pool, messages)
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(messages) {
					t.Errorf("publisher %d: %d ids do not rise strictly", p, len(ids))
				}
				var wrong int
				err = db.Pool.QueryRow(t.Context(), `
					SELECT count(*)
					FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY AS want (id, aggregate_id, position)
					LEFT JOIN events.outbox AS o ON o.id = want.id
					WHERE (o.payload->'data')::bigint IS DISTINCT FROM want.position - 1 OR o.aggregate_id IS DISTINCT FROM want.aggregate_id`,
					ids, aggregateIDs(messages)).Scan(&wrong)
				if err != nil || wrong != 0 {
					t.Errorf("publisher %d: %d ids belong to other messages, %v", p, wrong, err)
				}
			})
		}
		publishers.Wait()
		if n := count(t, db.Pool); n != 4*1500 {
			t.Errorf("%d events", n)
		}
	})

	t.Run("is one round trip", func(t *testing.T) {
		t.Parallel()
		counting := &countingQuerier{Querier: pgtest.Database(t).Pool}
		if _, err := outbox.PublishBatch(t.Context(), counting, []outbox.Message{placed(1), placed(2), placed(3)}); err != nil {
			t.Fatal(err)
		}
		if counting.queries != 1 {
			t.Fatalf("%d queries", counting.queries)
		}
	})

	t.Run("without messages nothing is sent", func(t *testing.T) {
		t.Parallel()
		counting := &countingQuerier{}
		ids, err := outbox.PublishBatch(t.Context(), counting, nil)
		if err != nil || len(ids) != 0 || counting.queries != 0 {
			t.Fatalf("got %v, %v, %d queries", ids, err, counting.queries)
		}
	})

	t.Run("is all or nothing for an invalid message", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		_, err := outbox.PublishBatch(t.Context(), db.Pool, []outbox.Message{placed(1), placed(func() {})})
		if !errors.Is(err, outbox.ErrInvalidMessage) || !strings.Contains(err.Error(), "message 1: data: ") {
			t.Fatalf("got %v", err)
		}
		if n := count(t, db.Pool); n != 0 {
			t.Fatalf("%d events", n)
		}
	})

	t.Run("is all or nothing for an error of the database", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		execute(t, db.Pool, "ALTER TABLE events.outbox ADD CHECK (event_type <> 'refused')")
		refused := placed(2)
		refused.EventType = "refused"
		_, err := outbox.PublishBatch(t.Context(), db.Pool, []outbox.Message{placed(1), refused, placed(3)})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23514" {
			t.Fatalf("got %v", err)
		}
		if n := count(t, db.Pool); n != 0 {
			t.Fatalf("%d events", n)
		}
	})

	t.Run("says if a trigger skips rows", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		execute(t, db.Pool, `CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER skip BEFORE INSERT ON events.outbox FOR EACH ROW WHEN (new.event_type = 'skipped') EXECUTE FUNCTION skip()`)
		skipped := placed(2)
		skipped.EventType = "skipped"
		for _, tt := range []struct {
			messages []outbox.Message
			want     string
		}{
			{[]outbox.Message{placed(1), skipped}, "1 of 2 events were inserted"},
			{[]outbox.Message{skipped}, "0 of 1 events were inserted"},
		} {
			if _, err := outbox.PublishBatch(t.Context(), db.Pool, tt.messages); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
		}
		if _, err := outbox.Publish(t.Context(), db.Pool, skipped); !errors.Is(err, pgx.ErrNoRows) {
			t.Fatalf("a single message: got %v", err)
		}
	})

	t.Run("stores what single messages store", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		rapid.Check(t, func(rt *rapid.T) {
			messages := rapid.SliceOfN(anyMessage(), 1, 6).Draw(rt, "messages")
			ids, err := outbox.PublishBatch(rt.Context(), db.Pool, messages)
			if err != nil {
				rt.Fatal(err)
			}
			for i, m := range messages {
				id, err := outbox.Publish(rt.Context(), db.Pool, m)
				if err != nil {
					rt.Fatal(err)
				}
				single, batched := read(t, db.Pool, id), read(t, db.Pool, ids[i])
				if m.OccurredAt.IsZero() {
					single.occurredAt, batched.occurredAt = time.Time{}, time.Time{}
				}
				if single != batched {
					rt.Fatalf("message %d: %+v in a batch, %+v alone", i, batched, single)
				}
				if single.aggregateType != m.AggregateType || single.eventType != m.EventType || single.aggregateID != m.AggregateID {
					rt.Fatalf("message %d: got %+v", i, single)
				}
			}
		})
	})
}

// anyMessage generates valid messages.
func anyMessage() *rapid.Generator[outbox.Message] {
	word := rapid.StringN(1, 12, 40).Filter(func(s string) bool { return !strings.ContainsRune(s, 0) })
	text := rapid.OneOf(rapid.Just(""), word)
	return rapid.Custom(func(t *rapid.T) outbox.Message {
		m := outbox.Message{
			AggregateType: word.Draw(t, "aggregate type"),
			AggregateID:   uuid.UUID(rapid.SliceOfN(rapid.ByteMin(1), 16, 16).Draw(t, "aggregate id")),
			EventType:     word.Draw(t, "event type"),
			Data:          rapid.MapOf(text, rapid.SliceOf(text)).Draw(t, "data"),
			Version:       rapid.IntMin(0).Draw(t, "version"),
			CorrelationID: text.Draw(t, "correlation"),
			CausationID:   text.Draw(t, "causation"),
			TraceParent:   text.Draw(t, "traceparent"),
		}
		if rapid.Bool().Draw(t, "with a time") {
			m.OccurredAt = time.Unix(rapid.Int64Range(0, 1<<32).Draw(t, "s"), rapid.Int64Range(1, 999_999_999).Draw(t, "ns"))
		}
		return m
	})
}

func TestPublishErrors(t *testing.T) {
	t.Parallel()

	t.Run("without the schema the error says how to make it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		want := func(err error) {
			t.Helper()
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != "42P01" || !strings.Contains(err.Error(), "outbox migrate up") {
				t.Errorf("got %v", err)
			}
		}
		_, err := outbox.Publish(t.Context(), db.Pool, placed(1))
		want(err)
		_, err = outbox.PublishBatch(t.Context(), db.Pool, []outbox.Message{placed(1)})
		want(err)
		_, err = outbox.LookupPublicID(t.Context(), db.Pool, 1)
		want(err)

		lib, err := sql.Open("postgres", db.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer lib.Close()
		_, err = outbox.PublishSQL(t.Context(), lib, placed(1))
		var pqErr *pq.Error
		if !errors.As(err, &pqErr) || !strings.Contains(err.Error(), "outbox migrate up") {
			t.Errorf("over lib/pq: got %v", err)
		}
	})

	t.Run("without privileges the error says which are needed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		conn := connectAs(t, db, "")
		_, err := outbox.Publish(t.Context(), conn, placed(1))
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "42501" || !strings.Contains(err.Error(), "USAGE ON SEQUENCE events.outbox_id_seq") {
			t.Errorf("got %v", err)
		}
		_, err = outbox.LookupPublicID(t.Context(), conn, 1)
		if !errors.As(err, &pg) || pg.Code != "42501" || !strings.Contains(err.Error(), "SELECT ON events.outbox_meta") {
			t.Errorf("got %v", err)
		}
	})

	t.Run("a cancelled context is an error", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := outbox.Publish(ctx, pgtest.Database(t).Pool, placed(1)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// The longest types fit into the indexes, whatever they consist of.
func TestPublishLongestTypes(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	random := rand.NewChaCha8([32]byte{})
	incompressible := func() string {
		text := make([]byte, 2048)
		for i := range text {
			text[i] = byte(' ' + random.Uint64()%95)
		}
		return string(text)
	}
	m := placed(1)
	m.AggregateType, m.EventType = incompressible(), incompressible()
	id, err := outbox.Publish(t.Context(), db.Pool, m)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, db.Pool, id); got.aggregateType != m.AggregateType || got.eventType != m.EventType {
		t.Fatal("a type came back different")
	}
}

// The publisher's privileges are those that the documentation of Publish names.
func TestPublisherRole(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	conn := connectAs(t, db, `
		GRANT USAGE ON SCHEMA events TO %[1]s;
		GRANT USAGE ON SEQUENCE events.outbox_id_seq TO %[1]s;
		GRANT INSERT (aggregate_type, aggregate_id, event_type, payload, occurred_at) ON events.outbox TO %[1]s;
		GRANT SELECT (id, occurred_at) ON events.outbox TO %[1]s;`)
	execute(t, conn, "SET search_path = ''")
	id, err := outbox.Publish(t.Context(), conn, awkward)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, db.Pool, id); got != awkwardStored {
		t.Fatalf("got  %+v\nwant %+v", got, awkwardStored)
	}
	if _, err := outbox.PublishBatch(t.Context(), conn, []outbox.Message{placed(1), awkward}); err != nil {
		t.Fatal(err)
	}
	execute(t, db.Pool, "GRANT SELECT ON events.outbox_meta TO "+role(db))
	if _, err := outbox.LookupPublicID(t.Context(), conn, id); err != nil {
		t.Fatal(err)
	}
}

// role is the name of the test's own role: roles belong to the server, not to a database.
func role(db *pgtest.DB) string { return db.Name + "_role" }

// connectAs returns a session of a new role that has the grants and nothing else.
func connectAs(t *testing.T, db *pgtest.DB, grants string) *pgx.Conn {
	t.Helper()
	execute(t, db.Pool, "CREATE ROLE "+role(db))
	t.Cleanup(func() {
		if _, err := db.Pool.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role(db))); err != nil {
			t.Error(err)
		}
	})
	if grants != "" {
		execute(t, db.Pool, fmt.Sprintf(grants, role(db)))
	}
	conn := db.Connect(t)
	execute(t, conn, "SET ROLE "+role(db))
	return conn
}

func execute(t *testing.T, db interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, statement string,
) {
	t.Helper()
	if _, err := db.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func aggregateIDs(messages []outbox.Message) []uuid.UUID {
	ids := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		ids[i] = m.AggregateID
	}
	return ids
}

type countingQuerier struct {
	outbox.Querier
	queries int
}

func (q *countingQuerier) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	q.queries++
	return q.Querier.QueryRow(ctx, sql, args...)
}
