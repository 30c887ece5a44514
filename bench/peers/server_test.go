package peers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/internal/benchserver"
)

// patience bounds every step that is not measured, and any wait for a consumer.
const patience = 2 * time.Minute

// shared is where databases are made. Autovacuum stays on: consumers that delete rows or write them anew may rely on it.
var shared = benchserver.Server{Name: "peers", Patience: patience}

// admin returns the address of the server.
func admin() (*url.URL, error) {
	address, err := shared.Address()
	if err != nil {
		return nil, err
	}
	admin, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(admin.Scheme, "postgres") {
		return nil, fmt.Errorf("%s: want a URL that begins with postgres://", benchserver.Variable)
	}
	return admin, nil
}

// database is an empty database, with a pool for what the measurement itself asks.
type database struct {
	url  string
	pool *pgxpool.Pool
}

// newDatabase makes a database. It is dropped when the test ends.
func newDatabase(tb testing.TB) *database {
	tb.Helper()
	admin, err := admin()
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
