package poller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgsession"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

const (
	// patience is how long a test waits for what must happen.
	patience = 60 * time.Second
	// never is an interval that does not end within a test.
	never = time.Hour
)

// handled is one call of the handler.
type handled struct {
	id      int64
	attempt int
}

// bundle is a running poller on a database of its own, with everything that it handled.
type bundle struct {
	*Poller
	t       *testing.T
	url     string
	pool    *pgxpool.Pool
	handle  func(ctx context.Context, e *event.Event) error
	log     *logBuffer
	stop    func() error // ends Run and returns its error
	suspect atomic.Int64

	mu    sync.Mutex
	calls []handled
	moved chan struct{} // a call was recorded

	known   map[int64]struct{} // the events of the first so many calls
	counted int
}

// start runs a poller whose fallback never fires: what it handles, a wake or a timer of its own found.
func start(t *testing.T, db *pgtest.DB, handle func(context.Context, *event.Event) error, adjust ...func(*Config)) *bundle {
	t.Helper()
	b := prepare(t, db, handle, adjust...)
	b.run()
	return b
}

func prepare(t *testing.T, db *pgtest.DB, handle func(context.Context, *event.Event) error, adjust ...func(*Config)) *bundle {
	t.Helper()
	b := &bundle{t: t, url: db.URL, pool: db.Pool, handle: handle, log: &logBuffer{}, moved: make(chan struct{}, 1)}
	log := zerolog.New(b.log)
	d, err := dispatch.New(dispatch.Config{Log: log, Retry: dispatch.Ladder(50 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Subscribe(dispatch.AnyType, "test", dispatch.HandlerFunc(b.record)); err != nil {
		t.Fatal(err)
	}
	var facts struct {
		namespace uuid.UUID
		sequence  string
	}
	err = db.Pool.QueryRow(t.Context(), "SELECT namespace, pg_get_serial_sequence('events.outbox', 'id') FROM events.outbox_meta").
		Scan(&facts.namespace, &facts.sequence)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Pool:                 db.Pool,
		Connect:              connectTo(t, db.URL, "owner"),
		ConnectGate:          connectTo(t, db.URL, "gate"),
		Deliver:              d.Deliver,
		Namespace:            facts.namespace,
		Sequence:             facts.sequence,
		Listening:            func() bool { return true },
		Suspect:              func(string) { b.suspect.Add(1) },
		PollInterval:         never,
		DegradedPollInterval: never,
		Log:                  log,
	}
	for _, a := range adjust {
		a(&cfg)
	}
	b.Poller, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run starts the poller and waits until it is the owner or a standby.
func (b *bundle) run() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	b.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("Run did not return")
		}
	})
	b.t.Cleanup(func() {
		if err := b.stop(); err != nil {
			b.t.Errorf("stop: %v", err)
		}
		if b.t.Failed() {
			b.t.Logf("log:\n%s", b.log)
		}
	})
	select {
	case <-b.Started():
	case <-time.After(patience):
		b.t.Fatalf("not started:\n%s", b.log)
	}
}

func connectTo(t *testing.T, url, role string) func(context.Context) (*pgx.Conn, error) {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.ConnectConfig(ctx, pgsession.Config(config, role))
	}
}

// record is the handler.
func (b *bundle) record(ctx context.Context, e *event.Event) error {
	b.mu.Lock()
	b.calls = append(b.calls, handled{e.ID, e.Attempt})
	b.mu.Unlock()
	signal(b.moved)
	if b.handle == nil {
		return nil
	}
	return b.handle(ctx, e)
}

// seen returns the ids that were handled, in the order of the calls.
func (b *bundle) seen() []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]int64, len(b.calls))
	for i, c := range b.calls {
		ids[i] = c.id
	}
	return ids
}

// waitCalls blocks until the handler has been called so often in all.
func (b *bundle) waitCalls(n int) {
	b.t.Helper()
	b.wait(fmt.Sprintf("%d calls", n), func() bool { return len(b.seen()) >= n })
}

// wait blocks until a condition holds, looking whenever the handler has been called and now and then besides.
func (b *bundle) wait(what string, condition func() bool) {
	b.t.Helper()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-b.moved:
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			b.t.Fatalf("waited in vain for %s; %d calls, stats %+v\n%s", what, len(b.seen()), b.Stats(), b.log)
		}
	}
}

// waitRows blocks until a count in the database is n.
func (b *bundle) waitRows(n int, where string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("%d rows with %s", n, where), func() bool { return b.count(where) == n })
}

func (b *bundle) count(where string) (n int) {
	b.t.Helper()
	if err := b.pool.QueryRow(context.Background(), "SELECT count(*) FROM events.outbox WHERE "+where).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// querier is what an event is inserted with.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// insert adds an event of the numbered aggregate and returns its id.
func insert(t testing.TB, q querier, aggregate int) (id int64) {
	t.Helper()
	err := q.QueryRow(context.Background(), `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('thing', $1, 'Happened', '{"version": 1, "data": {}}') RETURNING id`, aggregateID(aggregate)).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// insertMany adds n events to each of so many aggregates, taking turns.
func insertMany(t testing.TB, pool *pgxpool.Pool, n, aggregates int) {
	t.Helper()
	_, err := pool.Exec(context.Background(), `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'thing', ('00000000-0000-0000-0000-' || lpad(to_hex(a), 12, '0'))::uuid, 'Happened', '{"version": 1, "data": {}}'
		FROM generate_series(1, $1) n, generate_series(1, $2) a ORDER BY n, a`, n, aggregates)
	if err != nil {
		t.Fatal(err)
	}
}

func aggregateID(n int) uuid.UUID {
	return uuid.MustParse(fmt.Sprintf("00000000-0000-0000-0000-%012x", n))
}

// begin opens a transaction in a session of its own; it is rolled back when the test ends.
func begin(t *testing.T, db *pgtest.DB) pgx.Tx {
	t.Helper()
	tx, err := db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
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
