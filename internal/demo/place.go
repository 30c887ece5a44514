package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox/internal/temppg"
)

// leavePatience bounds the removal of a temporary database.
const leavePatience = 10 * time.Second

// place is a database that exists for the length of the demo.
type place struct {
	url   string
	leave func() (left string, err error) // removes it, and says what was removed
}

// findPlace makes a temporary database where o says, and tells the screen where that is.
func findPlace(ctx context.Context, o Options, to *screen) (place, error) {
	if o.DatabaseURL != "" {
		return borrowedPlace(ctx, o.DatabaseURL, to)
	}
	return privatePlace(ctx, to)
}

// privatePlace starts a server. It is a durable one: a commit waits for the disk as it would in earnest.
func privatePlace(ctx context.Context, to *screen) (place, error) {
	to.note("Starting a private, temporary PostgreSQL ...")
	began := time.Now()
	server, err := temppg.Start(ctx, temppg.Options{Durable: true, Progress: func(step string) { to.fact("", step) }})
	if err != nil {
		return place{}, err
	}
	to.fact("server", fmt.Sprintf("PostgreSQL %s from %s, up in %.1f s", server.Version(), server.BinDir(), time.Since(began).Seconds()))
	to.fact("folder", server.SocketDir()+", removed at the end")
	to.fact("look in", "psql -h "+server.SocketDir()+" -U postgres")
	return place{
		url: server.URL("postgres"),
		leave: func() (string, error) {
			return "server stopped, " + server.SocketDir() + " removed", server.Stop()
		},
	}, nil
}

// borrowedPlace makes a database on somebody's server.
func borrowedPlace(ctx context.Context, address string, to *screen) (place, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return place{}, fmt.Errorf("database url: %w", err)
	}
	name := "outbox_demo_" + strings.ToLower(rand.Text()[:8])
	url, err := withDatabase(address, name)
	if err != nil {
		return place{}, fmt.Errorf("database url: %w", err)
	}
	where := config.Host
	if !strings.HasPrefix(where, "/") {
		where = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	}
	to.note("Making a temporary database on " + where + " ...")
	if err := execute(ctx, address, "CREATE DATABASE "+name); err != nil {
		return place{}, fmt.Errorf("make a temporary database on %s: %w", where, err)
	}
	to.fact("database", name+", dropped at the end")
	return place{
		url: url,
		leave: func() (string, error) {
			// Not the caller's context: the database must go also when the demo was interrupted.
			ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
			defer cancel()
			if err := execute(ctx, address, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
				return "", fmt.Errorf("drop database %s on %s: %w", name, where, err)
			}
			return "database " + name + " dropped", nil
		},
	}, nil
}

func execute(ctx context.Context, address, statement string) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" { // insufficient_privilege
		err = fmt.Errorf("the role needs CREATEDB: %w", err)
	}
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// withDatabase returns the address of another database on the same server.
func withDatabase(address, name string) (string, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return address + " dbname=" + name, nil // of equal keywords the last counts
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.Path, u.RawQuery = "/"+name, query.Encode()
	return u.String(), nil
}
