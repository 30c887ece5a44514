package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

const (
	patience = 60 * time.Second
	never    = time.Hour // an interval that does not end within a test
)

// running is a worker that has been started, with what it delivered.
type running struct {
	*Worker
	t    *testing.T
	log  *logBuffer
	stop func() error
}

// startWorker runs a worker on a database with the subscriptions that register makes, and waits until it is ready. Its
// fallback never fires, so what is delivered was woken.
func startWorker(t *testing.T, cfg Config, register func(*Worker)) *running {
	t.Helper()
	r := &running{t: t, log: &logBuffer{}}
	cfg.Log = zerolog.New(r.log)
	if cfg.PollInterval == 0 {
		cfg.PollInterval, cfg.DegradedPollInterval = never, never
	}
	w, err := NewWorker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Worker = w
	register(w)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("Run did not return")
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	select {
	case <-w.Ready():
	case err := <-ended:
		t.Fatalf("Run returned early: %v", err)
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	return r
}

// collect is a handler that passes events on.
func collect() (chan *Event, Handler) {
	events := make(chan *Event, 1000)
	return events, HandlerFunc(func(_ context.Context, e *Event) error { events <- e; return nil })
}

func receive(t *testing.T, events <-chan *Event) *Event {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(patience):
		t.Fatal("waited in vain for an event")
		return nil
	}
}

// eventually waits for a condition of the database.
func eventually(t *testing.T, pool *pgxpool.Pool, n int, where string) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		var got int
		if err := pool.QueryRow(context.Background(), "SELECT count(*) FROM events.outbox WHERE "+where).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != n {
			return fmt.Errorf("%d rows with %s, want %d", got, where, n)
		}
		return nil
	})
}

func newMessage(eventType string) Message {
	return Message{AggregateType: "order", AggregateID: uuid.New(), EventType: eventType, Data: map[string]int{"n": 1}}
}

func publish1(t *testing.T, q Querier, m Message) int64 {
	t.Helper()
	id, err := Publish(context.Background(), q, m)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestWorker(t *testing.T) {
	t.Parallel()

	t.Run("an event is delivered after its commit, by notification alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		events, handler := collect()
		startWorker(t, Config{DatabaseURL: db.URL}, func(w *Worker) { w.Subscribe("Placed", "test", handler) })
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := newMessage("Placed")
		id := publish1(t, tx, m)
		other, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		publish1(t, other, newMessage("Placed"))
		if err := other.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		e := receive(t, events)
		if e.ID != id || e.Type != "Placed" || e.AggregateType != "order" || e.AggregateID != m.AggregateID || e.Version != 1 || e.Attempt != 1 {
			t.Errorf("delivered %+v", e)
		}
		public, err := LookupPublicID(t.Context(), db.Pool, id)
		if err != nil || public != e.PublicID {
			t.Errorf("public id %s by look-up (%v), %s as delivered", public, err, e.PublicID)
		}
		eventually(t, db.Pool, 1, "published_at IS NOT NULL")
		if len(events) > 0 {
			t.Error("an event that was rolled back was delivered")
		}
	})

	t.Run("an event published in a handler names its cause", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		events, handler := collect()
		startWorker(t, Config{Pool: db.Pool}, func(w *Worker) {
			w.Subscribe("Placed", "shipping", HandlerFunc(func(ctx context.Context, _ *Event) error {
				_, err := Publish(ctx, db.Pool, newMessage("Shipped"))
				return err
			}))
			w.Subscribe("Shipped", "test", handler)
			w.Subscribe("Placed", "test", handler)
		})
		m := newMessage("Placed")
		m.CorrelationID = "request-7"
		publish1(t, db.Pool, m)
		placed, shipped := receive(t, events), receive(t, events)
		if placed.Type == "Shipped" {
			placed, shipped = shipped, placed
		}
		if shipped.Metadata.CausationID != placed.PublicID.String() || shipped.Metadata.CorrelationID != "request-7" {
			t.Errorf("metadata %+v, want cause %s", shipped.Metadata, placed.PublicID)
		}
	})

	t.Run("a retry calls only the subscribers that have not succeeded, also after a restart", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var calls [2]atomic.Int32
		register := func(w *Worker) {
			w.Subscribe("Placed", "good", HandlerFunc(func(context.Context, *Event) error { calls[0].Add(1); return nil }))
			w.Subscribe(AnyType, "bad", HandlerFunc(func(context.Context, *Event) error {
				if calls[1].Add(1) < 3 {
					return errors.New("not yet")
				}
				return nil
			}))
		}
		cfg := Config{DatabaseURL: db.URL, Retry: dispatch.Ladder(time.Millisecond, never)}
		w := startWorker(t, cfg, register)
		publish1(t, db.Pool, newMessage("Placed"))
		eventually(t, db.Pool, 1, "retry_count = 2")
		if err := w.stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Pool.Exec(t.Context(), "UPDATE events.outbox SET next_retry_at = now()"); err != nil {
			t.Fatal(err)
		}
		startWorker(t, cfg, register)
		eventually(t, db.Pool, 1, "published_at IS NOT NULL")
		if good, bad := calls[0].Load(), calls[1].Load(); good != 1 || bad != 3 {
			t.Errorf("good was called %d times and bad %d times, want 1 and 3", good, bad)
		}
	})

	t.Run("a panic is a failure, and its stack is logged", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		w := startWorker(t, Config{DatabaseURL: db.URL}, func(w *Worker) {
			w.Subscribe(AnyType, "test", HandlerFunc(func(context.Context, *Event) error { panic("oh") }))
		})
		publish1(t, db.Pool, newMessage("Placed"))
		eventually(t, db.Pool, 1, "retry_count = 1 AND last_error LIKE '%panic: oh%' AND next_retry_at > now() + interval '50 s'")
		if log := w.log.String(); !strings.Contains(log, "worker_test.go") {
			t.Errorf("no stack in the log:\n%s", log)
		}
	})

	t.Run("a type that nobody subscribes to is retried, with an error that says why", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		_, handler := collect()
		startWorker(t, Config{DatabaseURL: db.URL}, func(w *Worker) { w.Subscribe("Placed", "test", handler) })
		publish1(t, db.Pool, newMessage("Unknown"))
		eventually(t, db.Pool, 1, "retry_count = 1 AND last_error LIKE '%no subscriber for event type%' AND published_at IS NULL")
	})

	t.Run("settings of a pool in an address do not reach the server", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		address := db.URL + "&pool_max_conns=3"
		if err := Migrate(t.Context(), address); err != nil {
			t.Fatal(err)
		}
		events, handler := collect()
		startWorker(t, Config{DatabaseURL: address, ListenURL: address}, func(w *Worker) { w.Subscribe(AnyType, "test", handler) })
		publish1(t, db.Pool, newMessage("Placed"))
		receive(t, events)
	})

	t.Run("a wake of the embedding service finds an event without the trigger", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		if _, err := db.Pool.Exec(t.Context(), "ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify"); err != nil {
			t.Fatal(err)
		}
		events, handler := collect()
		w := startWorker(t, Config{DatabaseURL: db.URL}, func(w *Worker) { w.Subscribe(AnyType, "test", handler) })
		id := publish1(t, db.Pool, newMessage("Placed"))
		w.Wake()
		if e := receive(t, events); e.ID != id {
			t.Errorf("delivered %d, want %d", e.ID, id)
		}
	})

	t.Run("many sessions, COPY and multi-row statements: each aggregate is delivered in order", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		var mu sync.Mutex
		seen := make(map[uuid.UUID][]int64)
		startWorker(t, Config{DatabaseURL: db.URL}, func(w *Worker) {
			w.Subscribe(AnyType, "test", HandlerFunc(func(_ context.Context, e *Event) error {
				mu.Lock()
				defer mu.Unlock()
				seen[e.AggregateID] = append(seen[e.AggregateID], e.ID)
				return nil
			}))
		})
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				m := newMessage("Placed")
				for range 30 {
					if _, err := Publish(context.Background(), db.Pool, m); err != nil {
						t.Error(err)
					}
					if _, err := PublishBatch(context.Background(), db.Pool, []Message{m, m, m}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		eventually(t, db.Pool, 8*30*4, "published_at IS NOT NULL")
		mu.Lock()
		defer mu.Unlock()
		for aggregate, ids := range seen {
			if len(ids) != 120 || !slices.IsSorted(ids) {
				t.Errorf("aggregate %s: %v", aggregate, ids)
			}
		}
	})
}

func TestWorkerWithoutItsListener(t *testing.T) {
	t.Parallel()

	t.Run("the direct address is cut: events arrive by polling, and notifications once it heals", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		events, handler := collect()
		w := startWorker(t, Config{
			DatabaseURL: db.URL, ListenURL: db.Through(t, proxy), PollInterval: 100 * time.Millisecond, DegradedPollInterval: 20 * time.Millisecond,
		}, func(w *Worker) { w.Subscribe(AnyType, "test", handler) })
		waitHealth(t, w, "listening", func(h Health) bool { return h.Listening && h.Owner })
		proxy.Cut()
		waitHealth(t, w, "degraded", func(h Health) bool { return h.Degraded && h.Reason != "" })
		publish1(t, db.Pool, newMessage("Placed"))
		receive(t, events)
		proxy.Heal()
		waitHealth(t, w, "listening again", func(h Health) bool { return h.Listening && !h.Degraded && h.Reconnects > 0 })
		publish1(t, db.Pool, newMessage("Placed"))
		receive(t, events)
	})

	t.Run("the direct address swallows everything: events arrive by polling", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		events, handler := collect()
		w := startWorker(t, Config{
			DatabaseURL: db.URL, ListenURL: db.Through(t, proxy), PollInterval: 100 * time.Millisecond, DegradedPollInterval: 20 * time.Millisecond,
			ConnectTimeout: time.Second,
		}, func(w *Worker) { w.Subscribe(AnyType, "test", handler) })
		waitHealth(t, w, "listening", func(h Health) bool { return h.Listening && h.Owner })
		proxy.Blackhole()
		for range 3 {
			publish1(t, db.Pool, newMessage("Placed"))
			receive(t, events)
		}
		waitHealth(t, w, "degraded", func(h Health) bool { return h.Degraded })
		proxy.Heal()
		waitHealth(t, w, "listening again", func(h Health) bool { return h.Listening && !h.Degraded })
	})

	t.Run("a trigger that is switched off shows as degraded", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		if _, err := db.Pool.Exec(t.Context(), "ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify"); err != nil {
			t.Fatal(err)
		}
		events, handler := collect()
		w := startWorker(t, Config{DatabaseURL: db.URL, PollInterval: 20 * time.Millisecond, DegradedPollInterval: 10 * time.Millisecond},
			func(w *Worker) { w.Subscribe(AnyType, "test", handler) })
		deadline := time.Now().Add(patience) // a poll can also find an event while it catches up, which proves nothing
		for !w.Health().Degraded && time.Now().Before(deadline) {
			publish1(t, db.Pool, newMessage("Placed"))
			receive(t, events)
			eventually(t, db.Pool, 0, "published_at IS NULL")
		}
		waitHealth(t, w, "degraded", func(h Health) bool { return h.Degraded && strings.Contains(h.Reason, "migrate notify") })
	})
}

func waitHealth(t *testing.T, w *running, what string, condition func(Health) bool) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		if h := w.Health(); !condition(h) {
			return fmt.Errorf("for the worker to be %s: %+v\n%s", what, h, w.log)
		}
		return nil
	})
}

func TestWorkerRefusesToStart(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, cfg Config) error {
		t.Helper()
		cfg.ConnectTimeout = 5 * time.Second
		w, err := NewWorker(cfg)
		if err != nil {
			return err
		}
		return w.Run(t.Context())
	}
	oneLine := func(t *testing.T, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}

	t.Run("without a schema", func(t *testing.T) {
		t.Parallel()
		err := run(t, Config{DatabaseURL: pgtest.EmptyDatabase(t).URL})
		oneLine(t, err, "run `outbox migrate up`")
		if !errors.Is(err, ErrNotMigrated) {
			t.Errorf("%v is not ErrNotMigrated", err)
		}
	})

	t.Run("on a table that is not migrated", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		if _, err := db.Pool.Exec(t.Context(), "CREATE SCHEMA events; CREATE TABLE events.outbox (id bigserial)"); err != nil {
			t.Fatal(err)
		}
		oneLine(t, run(t, Config{DatabaseURL: db.URL}), "adopt it")
	})

	for name, version := range map[string]int{"on an older schema": 1, "on a newer schema": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			sql := fmt.Sprintf("CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER LANGUAGE sql AS 'SELECT %d'", version)
			if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			oneLine(t, run(t, Config{DatabaseURL: db.URL}), fmt.Sprintf("has version %d", version))
		})
	}

	t.Run("without privileges", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		role := "poor_" + db.Name
		if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN; GRANT USAGE ON SCHEMA events TO %[1]s; GRANT SELECT ON events.outbox, events.outbox_meta TO %[1]s", role)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := db.Pool.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %s; DROP ROLE %[1]s", role)); err != nil {
				t.Error(err)
			}
		})
		config := db.Pool.Config()
		config.ConnConfig.User = role
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		err = run(t, Config{Pool: pool})
		oneLine(t, err, "GRANT UPDATE ON events.outbox")
		if !errors.Is(err, ErrPrivileges) {
			t.Errorf("%v is not ErrPrivileges", err)
		}
	})

	t.Run("where nothing listens", func(t *testing.T) {
		t.Parallel()
		oneLine(t, run(t, Config{DatabaseURL: "postgres://127.0.0.1:1/none"}), "reach the database")
	})

	t.Run("with a subscription that was refused", func(t *testing.T) {
		t.Parallel()
		w, err := NewWorker(Config{DatabaseURL: "postgres://127.0.0.1:1/none"})
		if err != nil {
			t.Fatal(err)
		}
		w.Subscribe("", "test", HandlerFunc(func(context.Context, *Event) error { return nil }))
		oneLine(t, w.Run(t.Context()), "event type")
	})

	t.Run("with a configuration that is wrong, naming every field", func(t *testing.T) {
		t.Parallel()
		_, err := NewWorker(Config{Concurrency: -1, MaxAttempts: -1, BatchSize: 10, MaxBatchSize: 5})
		for _, field := range []string{"DatabaseURL", "Concurrency", "MaxAttempts", "MaxBatchSize"} {
			oneLine(t, err, field)
		}
	})
}

// logBuffer collects log lines of several goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
