package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/temppg"
)

// urlVariable names a server to measure instead of a private one.
const urlVariable = "OUTBOX_BENCH_DATABASE_URL"

// patience bounds every step that is not measured, and any wait for the worker.
const patience = 5 * time.Minute

// settings of the private server. A checkpoint or an autovacuum would hit one arm of a comparison and not the
// other, so a run gets by without either, and has memory for all its rows.
var settings = map[string]string{
	"shared_buffers":     "512MB",
	"max_wal_size":       "8GB",
	"checkpoint_timeout": "1h",
	"autovacuum":         "off",
}

// server is where databases are made. It starts at its first use.
type server struct {
	mu    sync.Mutex
	admin *url.URL
	stop  func() error
	err   error // of the first attempt; there is no second
}

var shared server

func (s *server) open() (*url.URL, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admin == nil && s.err == nil {
		s.err = s.start()
	}
	return s.admin, s.err
}

func (s *server) start() error {
	address := os.Getenv(urlVariable)
	if address == "" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		private, err := temppg.Start(ctx, temppg.Options{Durable: true, Settings: settings, Progress: progress})
		if err != nil {
			return err
		}
		s.stop, address = private.Stop, private.URL("postgres")
	}
	admin, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(admin.Scheme, "postgres") {
		return fmt.Errorf("%s: want a URL that begins with postgres://", urlVariable)
	}
	s.admin = admin
	return nil
}

func (s *server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil {
		return nil
	}
	return s.stop()
}

func progress(line string) { fmt.Fprintf(os.Stderr, "bench: %s\n", line) }

// database is a migrated outbox of its own.
type database struct {
	url  string
	pool *pgxpool.Pool
}

// newDatabase makes a database. It is dropped when drop is called, or when the benchmark ends.
func newDatabase(b *testing.B) (db *database, drop func()) {
	b.Helper()
	admin, err := shared.open()
	if err != nil {
		b.Fatal(err)
	}
	name := "outbox_bench_" + strings.ToLower(rand.Text()[:8])
	execAt(b, admin.String(), "CREATE DATABASE "+name)
	drop = sync.OnceFunc(func() { execAt(b, admin.String(), "DROP DATABASE "+name+" WITH (FORCE)") })
	b.Cleanup(drop)

	address := *admin
	address.Path = "/" + name
	db = &database{url: address.String()}
	if err := outbox.Migrate(b.Context(), db.url); err != nil {
		b.Fatal(err)
	}
	db.pool, err = pgxpool.New(b.Context(), db.url)
	if err != nil {
		b.Fatal(err)
	}
	dropDatabase := drop
	drop = sync.OnceFunc(func() { db.pool.Close(); dropDatabase() })
	b.Cleanup(drop)
	return db, drop
}

// execAt runs one statement in a session of its own, also while the benchmark is being cleaned up.
func execAt(b *testing.B, address, sql string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		b.Fatal(err)
	}
	_, err = conn.Exec(ctx, sql)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		b.Fatal(err)
	}
}

// preload inserts n events of so many bytes of data, their aggregates taking turns, and leaves the table as a
// server in use would have it: statistics and hint bits are fresh, and the pages of the log have been written out.
func (db *database) preload(b *testing.B, n, aggregates, dataBytes int) {
	b.Helper()
	_, err := db.pool.Exec(b.Context(), `
		INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', lpad(to_hex(n % $2), 32, '0')::uuid, 'OrderPlaced',
		       jsonb_build_object('version', 1, 'data', repeat('x', $3 - 2))
		FROM generate_series(1::bigint, $1) n`, n, aggregates, dataBytes)
	if err != nil {
		b.Fatal(err)
	}
	for _, sql := range []string{"VACUUM (ANALYZE) events.outbox", "CHECKPOINT"} {
		if _, err := db.pool.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
}

// unpublished counts what is left to do.
func (db *database) unpublished(b *testing.B) (n int) {
	b.Helper()
	err := db.pool.QueryRow(b.Context(), "SELECT count(*) FROM events.outbox WHERE published_at IS NULL").Scan(&n)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// connect opens a session of its own, closed when the benchmark ends.
func (db *database) connect(b *testing.B) *pgx.Conn {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), db.url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx) // its database may be gone
	})
	return conn
}
