package peers

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

	"github.com/seed-9a365b49/outbox/internal/temppg"
)

// urlVariable names a server to measure instead of a private one.
const urlVariable = "OUTBOX_BENCH_DATABASE_URL"

// patience bounds every step that is not measured, and any wait for a consumer.
const patience = 2 * time.Minute

// settings of the private server. A checkpoint would hit one candidate and not the other, so a run gets by without. Autovacuum stays
// on: consumers that delete rows or write them anew may rely on it.
var settings = map[string]string{
	"shared_buffers":     "512MB",
	"max_wal_size":       "8GB",
	"checkpoint_timeout": "1h",
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

func progress(line string) { fmt.Fprintf(os.Stderr, "peers: %s\n", line) }

// database is an empty database, with a pool for what the measurement itself asks.
type database struct {
	url  string
	pool *pgxpool.Pool
}

// newDatabase makes a database. It is dropped when the test ends.
func newDatabase(tb testing.TB) *database {
	tb.Helper()
	admin, err := shared.open()
	if err != nil {
		tb.Fatal(err)
	}
	name := "outbox_peers_" + strings.ToLower(rand.Text()[:8])
	execAt(tb, admin.String(), "CREATE DATABASE "+name)
	tb.Cleanup(func() { execAt(tb, admin.String(), "DROP DATABASE "+name+" WITH (FORCE)") })
	address := *admin
	address.Path = "/" + name
	pool, err := pgxpool.New(tb.Context(), address.String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return &database{address.String(), pool}
}

// execAt runs one statement in a session of its own, also while the test is being cleaned up.
func execAt(tb testing.TB, address, sql string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		tb.Fatal(err)
	}
	_, err = conn.Exec(ctx, sql)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		tb.Fatal(err)
	}
}

// connect opens a session of its own, closed when the test ends.
func (d *database) connect(tb testing.TB) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), d.url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx) // its database may be gone
	})
	return conn
}
