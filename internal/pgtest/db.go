package pgtest

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/internal/netcut"
)

// closePatience is how long closing a pool may take: it waits for connections that the test
// has not given back.
const closePatience = 5 * time.Second

// DB is a test's own database.
type DB struct {
	// URL is its address, as the superuser or the role of OUTBOX_TEST_DATABASE_URL.
	URL string
	// Name is its name, unlike that of any other database of the server.
	Name string
	// Pool connects on demand and is closed when the test ends.
	Pool *pgxpool.Pool
}

func newDB(ctx context.Context, t testing.TB, name, url string) *DB {
	t.Helper()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatalf("pgtest: open pool: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(closePatience):
			t.Errorf("pgtest: pool does not close: %d connections were not released", pool.Stat().AcquiredConns())
		}
	})
	return &DB{URL: url, Name: name, Pool: pool}
}

// Connect returns a session of its own, closed when the test ends.
func (d *DB) Connect(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.URL)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		defer cancel()
		_ = conn.Close(ctx) // may be broken, on purpose
	})
	return conn
}

// Proxy returns a proxy to the database's server that can be cut, for [DB.Through].
func (d *DB) Proxy(t testing.TB) *netcut.Proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(d.URL)
	if err != nil {
		t.Fatalf("pgtest: proxy: %v", err)
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	return netcut.New(t, network, address)
}

// Through returns the database's URL by way of a proxy.
func (d *DB) Through(t testing.TB, p *netcut.Proxy) string {
	t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatalf("pgtest: through proxy: %v", err)
	}
	q := u.Query()
	q.Del("host")
	q.Del("port")
	u.Host, u.RawQuery = p.Addr(), q.Encode()
	return u.String()
}
