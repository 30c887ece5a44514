package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

const (
	// turnInterval is how often a process that waits for another one looks whether it is its turn; up to twice as long.
	turnInterval = 50 * time.Millisecond
	// turnPatience is how long it waits: the other one may be building an index on a large table.
	turnPatience = 5 * time.Minute
	// unlockTimeout bounds giving the lock back. Closing the connection does it too.
	unlockTimeout = 5 * time.Second
)

// session runs work while no other process migrates this database. The lock also covers the schema, which goose's own
// locking would not.
func session(ctx context.Context, config *pgx.ConnConfig, work func(context.Context, *sql.DB) error) error {
	config = config.Copy()
	config.RuntimeParams["application_name"] = pgnames.Application + "migrate"
	db := stdlib.OpenDB(*config)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	if err := waitForTurn(ctx, conn); err != nil {
		return err
	}
	defer unlock(ctx, conn)
	return work(ctx, db)
}

// waitForTurn takes the migration lock. It polls, as a waiting statement would hold a snapshot, for whose end the
// other process's CREATE INDEX CONCURRENTLY waits: a deadlock.
func waitForTurn(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, turnPatience, errors.New("it took longer than "+turnPatience.String()))
	defer cancel()
	for {
		var locked bool
		if err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", pgnames.MigrationLock).Scan(&locked); err != nil && ctx.Err() == nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if locked {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for another process that migrates: %w", context.Cause(ctx))
		case <-time.After(turnInterval + rand.N(turnInterval)):
		}
	}
}

func unlock(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	_, _ = conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", pgnames.MigrationLock) // closing the connection does it too
}
