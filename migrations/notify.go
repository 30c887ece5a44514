package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// NotifyMode says when publishers announce their events with NOTIFY: see 00009_gate.sql.
type NotifyMode string

const (
	// NotifyGated: while a worker sleeps. The default.
	NotifyGated NotifyMode = "gated"
	// NotifyAlways: in every transaction. It slows down publishers that commit at the same time, and is for other programs that
	// listen.
	NotifyAlways NotifyMode = "always"
	// NotifyOff: never; workers poll. For two-phase commit: PREPARE TRANSACTION refuses NOTIFY.
	NotifyOff NotifyMode = "off"
)

// NotifyModes are all of them.
var NotifyModes = []NotifyMode{NotifyGated, NotifyAlways, NotifyOff}

// NotifyVersion is the schema version from which on there are modes.
const NotifyVersion = 9

// ErrNoModes is returned where there is no schema, or one that is too old to have modes.
var ErrNoModes = errors.New("the outbox schema is not there, or older than version 9: run `outbox migrate up`")

// SetNotify switches a migrated database to a mode, at any time: nothing waits for it, and transactions that insert from
// then on obey it, workers without a restart. Only the owner of the schema may.
func SetNotify(ctx context.Context, config *pgx.ConnConfig, mode NotifyMode) error {
	return withQueries(ctx, config, func(q *eventsdb.Queries) error { return q.SetNotify(ctx, string(mode)) })
}

// Notify returns the mode of a migrated database.
func Notify(ctx context.Context, config *pgx.ConnConfig) (mode NotifyMode, err error) {
	err = withQueries(ctx, config, func(q *eventsdb.Queries) error {
		text, err := q.NotifyMode(ctx)
		mode = NotifyMode(text)
		return err
	})
	return mode, err
}

// withQueries asks a schema that has modes.
func withQueries(ctx context.Context, config *pgx.ConnConfig, ask func(*eventsdb.Queries) error) (err error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	q := eventsdb.New(conn)
	there, err := q.SchemaThere(ctx)
	switch {
	case err != nil:
		return describe(fmt.Errorf("look for the schema: %w", err))
	case !there.Versioned:
		return ErrNoModes
	}
	version, err := q.SchemaVersion(ctx)
	switch {
	case err != nil:
		return describe(fmt.Errorf("read the schema's version: %w", err))
	case version < NotifyVersion:
		return ErrNoModes
	}
	if err := ask(q); err != nil {
		return describe(err)
	}
	return nil
}
