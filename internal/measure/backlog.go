package measure

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// preloadChunk is how many events one statement inserts.
const preloadChunk = 10_000

// Backlog is what to preload.
type Backlog struct {
	Events     int
	Aggregates int           // which take turns
	Bytes      int           // of each event's data
	Limit      time.Duration // after which no more is inserted; zero: none
}

// Preload inserts a backlog and returns how much of it there was time for. It leaves the table as a server in use would have it: statistics
// and hint bits are fresh, and the pages of the log have been written out.
func (d *Database) Preload(ctx context.Context, b Backlog) (events int, err error) {
	data := incompressible(b.Bytes)
	for began := time.Now(); events < b.Events && (events == 0 || b.Limit == 0 || time.Since(began) < b.Limit); {
		chunk := min(preloadChunk, b.Events-events)
		_, err := d.pool.Exec(ctx, `
			INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', lpad(to_hex(n % $3), 32, '0')::uuid, 'OrderPlaced', jsonb_build_object('version', 1, 'data', $4::text)
			FROM generate_series($1::bigint, $2) n`, events+1, events+chunk, b.Aggregates, data)
		if err != nil {
			return 0, fmt.Errorf("preload events: %w", err)
		}
		events += chunk
	}
	return events, d.settleDown(ctx)
}

// settleDown does what would otherwise happen during a measurement, to one arm of it.
func (d *Database) settleDown(ctx context.Context) error {
	if err := d.exec(ctx, "VACUUM (ANALYZE) events.outbox"); err != nil {
		return err
	}
	err := d.exec(ctx, "CHECKPOINT")
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" { // insufficient_privilege: not everybody may
		return nil
	}
	return err
}

// incompressible returns a text that is so many bytes long as JSON, and no shorter in the database.
func incompressible(bytes int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // never fails
	return base64.RawURLEncoding.EncodeToString(random)[:max(bytes-2, 1)]
}

// count returns how many events are published, and how many are not.
func (d *Database) count(ctx context.Context) (published, unpublished int, err error) {
	err = d.pool.QueryRow(ctx, "SELECT count(published_at), count(*) - count(published_at) FROM events.outbox").Scan(&published, &unpublished)
	if err != nil {
		return 0, 0, fmt.Errorf("count events: %w", err)
	}
	return published, unpublished, nil
}
