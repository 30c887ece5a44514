package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox/migrations"
)

const (
	// adminDatabase is where CREATE DATABASE is sent from; no test works in it.
	adminDatabase = "postgres"
	// objectInUse (object_in_use) is reported while sessions that have just been closed are
	// still ending in a template, and for databases with prepared transactions.
	objectInUse = "55006"
	retryEvery  = 20 * time.Millisecond
)

// cluster makes databases on one server.
type cluster struct {
	admin  *url.URL
	prefix string // of the names of its databases, unlike that of any other test binary
	count  atomic.Int64

	creating sync.Mutex // one CREATE DATABASE at a time: two of one template exclude each other
	template string     // migrated; "" until needed
}

func newCluster(admin string) (*cluster, error) {
	u, err := url.Parse(admin)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("want a URL that begins with postgres://")
	}
	return &cluster{admin: u, prefix: "outbox_test_" + strings.ToLower(rand.Text()[:8])}, nil
}

// url returns the address of a database of the server.
func (c *cluster) url(database string) string {
	u := *c.admin
	u.Path = "/" + database
	return u.String()
}

func (c *cluster) migrated(t testing.TB) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	template, err := c.migratedTemplate(ctx)
	if err != nil {
		t.Fatalf("pgtest: make the template: %v", err)
	}
	return c.open(ctx, t, template)
}

func (c *cluster) empty(t testing.TB) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return c.open(ctx, t, "template0")
}

// migratedTemplate makes the template at its first call.
func (c *cluster) migratedTemplate(ctx context.Context) (string, error) {
	c.creating.Lock()
	defer c.creating.Unlock()
	if c.template != "" {
		return c.template, nil
	}
	name := c.prefix + "_template"
	if err := c.exec(ctx, create(name, "template0")); err != nil {
		return "", err
	}
	if err := migrate(ctx, c.url(name)); err != nil {
		return "", errors.Join(err, c.drop(ctx, name))
	}
	if err := c.exec(ctx, "ALTER DATABASE "+quote(name)+" ALLOW_CONNECTIONS false"); err != nil {
		return "", errors.Join(err, c.drop(ctx, name))
	}
	c.template = name
	return name, nil
}

func migrate(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	return migrations.Up(ctx, config, nil)
}

// open copies a template and returns the copy ready for use.
func (c *cluster) open(ctx context.Context, t testing.TB, template string) *DB {
	t.Helper()
	name := fmt.Sprintf("%s_%d", c.prefix, c.count.Add(1))
	if err := c.copy(ctx, name, template); err != nil {
		t.Fatalf("pgtest: create database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.drop(ctx, name); err != nil {
			t.Errorf("pgtest: drop database: %v", err)
		}
	})
	return newDB(ctx, t, name, c.url(name))
}

func (c *cluster) copy(ctx context.Context, name, template string) error {
	c.creating.Lock()
	defer c.creating.Unlock()
	return c.exec(ctx, create(name, template))
}

func create(name, template string) string {
	return fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", quote(name), quote(template))
}

// drop removes a database with whatever sessions and prepared transactions a test left in it.
func (c *cluster) drop(ctx context.Context, name string) error {
	statement := "DROP DATABASE IF EXISTS " + quote(name) + " WITH (FORCE)"
	err := c.execOnce(ctx, statement)
	if !isInUse(err) {
		return err
	}
	if err := rollBackPrepared(ctx, c.url(name)); err != nil {
		return fmt.Errorf("roll back prepared transactions: %w", err)
	}
	return c.exec(ctx, statement)
}

// close drops the template, for a server that goes on.
func (c *cluster) close() error {
	c.creating.Lock()
	defer c.creating.Unlock()
	if c.template == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.drop(ctx, c.template)
}

// exec runs a statement in the admin database, again while the database that it names is in use.
func (c *cluster) exec(ctx context.Context, statement string) error {
	for {
		err := c.execOnce(ctx, statement)
		if !isInUse(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryEvery):
		}
	}
}

func (c *cluster) execOnce(ctx context.Context, statement string) error {
	return withConn(ctx, c.admin.String(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		return err
	})
}

func rollBackPrepared(ctx context.Context, url string) error {
	return withConn(ctx, url, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database()")
		if err != nil {
			return err
		}
		statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func withConn(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(context.WithoutCancel(ctx)))
}

func isInUse(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == objectInUse
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
