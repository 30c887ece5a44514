package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox"
)

// smallMessage is an event with 20 bytes of data, of an aggregate of its own.
func smallMessage() outbox.Message {
	return outbox.Message{AggregateType: "order", AggregateID: uuid.New(), EventType: "OrderPlaced", Data: "xxxxxxxxxxxxxxxxxx"}
}

// published is an event that was committed.
type published struct {
	id     int64
	commit time.Duration // from sending COMMIT to its acknowledgement
	acked  time.Time     // when it was acknowledged
}

// publishOne publishes an event as a service does: BEGIN, INSERT, COMMIT.
func publishOne(ctx context.Context, conn *pgx.Conn) (p published, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return p, fmt.Errorf("publish: begin: %w", err)
	}
	if p.id, err = outbox.Publish(ctx, tx, smallMessage()); err != nil {
		return p, err
	}
	sent := time.Now()
	if err := tx.Commit(ctx); err != nil {
		return p, fmt.Errorf("publish: commit: %w", err)
	}
	p.acked = time.Now()
	p.commit = p.acked.Sub(sent)
	return p, nil
}

// openPublishers opens sessions that have everything prepared to publish.
func openPublishers(ctx context.Context, db *Database, n int, prepare func(context.Context, *pgx.Conn) error) (conns []*pgx.Conn, err error) {
	for range n {
		conn, err := db.Connect(ctx)
		if err == nil {
			conns = append(conns, conn)
			err = prepare(ctx, conn)
		}
		if err != nil {
			closePublishers(ctx, conns)
			return nil, fmt.Errorf("open a publisher's session: %w", err)
		}
	}
	return conns, nil
}

func closePublishers(ctx context.Context, conns []*pgx.Conn) {
	for _, conn := range conns {
		closeConn(ctx, conn)
	}
}

// publishNone does all but the commit, so that a session has its statements prepared.
var publishNone = rolledBack(func(ctx context.Context, q outbox.Querier) error {
	_, err := outbox.Publish(ctx, q, smallMessage())
	return err
})
