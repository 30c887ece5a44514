package measure

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/migrations"
)

const (
	// DatabasePrefix begins the name of every temporary database.
	DatabasePrefix = "outbox_bench_"
	// cleanUpPatience bounds the removal of a temporary database.
	cleanUpPatience = 30 * time.Second
	// workerConnections is the size of a worker's own pool, see outbox.Config.DatabaseURL.
	workerConnections = 4
)

// ErrCreateDB: the role may not create databases.
var ErrCreateDB = errors.New("the role may not create databases")

// Server is where temporary databases are made.
type Server struct{ config *pgxpool.Config }

// NewServer returns the server that an address leads to. Its database is only where others are created from.
func NewServer(config *pgxpool.Config) *Server { return &Server{config.Copy()} }

// CheckPrivileges fails with [ErrCreateDB] for a role that may not create databases.
func (s *Server) CheckPrivileges(ctx context.Context) error {
	var allowed bool
	err := s.with(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT rolcreatedb OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user").Scan(&allowed)
	})
	if err != nil {
		return fmt.Errorf("look at the role: %w", err)
	}
	if !allowed {
		return ErrCreateDB
	}
	return nil
}

// FreeConnections returns how many more sessions the server lets the role open.
func (s *Server) FreeConnections(ctx context.Context) (n int, err error) {
	err = s.with(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT LEAST(
				current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
					- (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type IN ('client backend', 'walsender')),
				CASE WHEN r.rolconnlimit < 0 THEN NULL ELSE
					r.rolconnlimit - (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE usename = current_user) END)::int
			FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("count connections: %w", err)
	}
	return n + 1, nil // the one that asked
}

// with opens a session in the server's own database.
func (s *Server) with(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, s.config.ConnConfig.Copy())
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(context.WithoutCancel(ctx)))
}

func (s *Server) exec(ctx context.Context, sql string) error {
	return s.with(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// Database is a migrated outbox of its own.
type Database struct {
	Name string
	pool *pgxpool.Pool
	drop func() error
}

// CreateDatabase makes a migrated database with a random name. The caller drops it.
func (s *Server) CreateDatabase(ctx context.Context) (*Database, error) {
	name := DatabasePrefix + strings.ToLower(rand.Text()[:12])
	db := &Database{Name: name}
	db.drop = sync.OnceValue(func() error {
		if db.pool != nil {
			db.pool.Close()
		}
		// Not the caller's context: the database must go also when the measuring was interrupted.
		ctx, cancel := context.WithTimeout(context.Background(), cleanUpPatience)
		defer cancel()
		if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("drop database %s: %w", name, err)
		}
		return nil
	})
	if err := s.exec(ctx, "CREATE DATABASE "+name); err != nil {
		// Also where it may have been created nevertheless.
		return nil, errors.Join(fmt.Errorf("create a temporary database: %w", explainCreate(err)), db.drop())
	}
	config := s.config.Copy()
	config.ConnConfig.Database = name
	err := s.exec(ctx, ownLimits(name))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up database %s: %w", name, err), db.drop())
	}
	if db.pool, err = pgxpool.NewWithConfig(ctx, config); err == nil {
		err = migrations.Up(ctx, config.ConnConfig, nil)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up database %s: %w", name, err), db.drop())
	}
	return db, nil
}

// ownLimits lifts, in one database, what a role may have been given for ordinary work: long statements and open transactions are
// part of the measuring.
func ownLimits(database string) string {
	return fmt.Sprintf(`
		ALTER ROLE CURRENT_USER IN DATABASE %[1]s SET statement_timeout = 0;
		ALTER ROLE CURRENT_USER IN DATABASE %[1]s SET idle_in_transaction_session_timeout = 0`, database)
}

func explainCreate(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" { // insufficient_privilege
		return fmt.Errorf("%w: %w", ErrCreateDB, err)
	}
	return err
}

// Drop removes the database with whatever sessions it has. Further calls return the first result.
func (d *Database) Drop() error { return d.drop() }

// Connect opens a session of its own.
func (d *Database) Connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
}

// exec runs statements one after the other, each in a transaction of its own.
func (d *Database) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := d.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// setNotify switches the mode, before anybody works on the database.
func (d *Database) setNotify(ctx context.Context, mode migrations.NotifyMode) error {
	if err := eventsdb.New(d.pool).SetNotify(ctx, string(mode)); err != nil {
		return fmt.Errorf("set the mode of notifications: %w", err)
	}
	return nil
}

// closeConn says goodbye to the server, also when ctx has ended; what comes of it does not matter any more.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpPatience)
	defer cancel()
	_ = conn.Close(ctx)
}
