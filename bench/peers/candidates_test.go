package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// rounds is how often every candidate is measured, taking turns.
var rounds = flag.Int("rounds", 1, "how often every peer is measured, taking turns")

// handler is what every consumer calls with the data of an event, first thing. The data is what payload made.
type handler func(data string)

// system is a way for an event to get from a transaction to a handler, in a database of its own.
type system interface {
	// publish adds an event to the transaction.
	publish(ctx context.Context, tx pgx.Tx, data string) error
	// publishMany adds events to the transaction in the way that the library offers for many.
	publishMany(ctx context.Context, tx pgx.Tx, data []string) error
	// start runs a consumer with handle, until stop has returned.
	start(ctx context.Context, handle handler) (stop func() error, err error)
	// anyPending is a query for whether an event has no durable outcome yet. It is cheap.
	anyPending() string
	// close frees what the system holds. Its consumer has been stopped.
	close()
}

// candidate is a system with its settings.
type candidate struct {
	peer, settings string
	// timer is what the consumer lets pass between two looks at the database. Idle is one that has had this time to itself.
	timer time.Duration
	// open makes the system's schema in an empty database, by its own migrations.
	open func(ctx context.Context, address string) (system, error)
}

// candidates are everything that is measured.
func candidates() []candidate {
	return []candidate{
		{"outbox", "defaults", 0, openOutbox},
		{"river", "defaults", riverDefaults.timer, riverDefaults.open},
		{"river", "tuned", riverTuned.timer, riverTuned.open},
		{"river", "tuned-5ms", riverTuned5ms.timer, riverTuned5ms.open},
		{"watermill-sql", "defaults", watermillDefaults.timer, watermillDefaults.open},
		{"watermill-sql", "tuned", watermillTuned.timer, watermillTuned.open},
		{"watermill-sql", "tuned-queue", watermillTunedQueue.timer, watermillTunedQueue.open},
	}
}

func (c candidate) String() string { return fmt.Sprintf("peer=%s/settings=%s", c.peer, c.settings) }

// takeTurns measures every candidate, round by round. A sub-benchmark is one measurement of one candidate.
func takeTurns(b *testing.B, measure func(b *testing.B, c candidate)) {
	for round := range *rounds {
		for _, c := range candidates() {
			b.Run(fmt.Sprintf("round=%d/%s", round+1, c), func(b *testing.B) {
				for b.Loop() {
					measure(b, c)
				}
			})
		}
	}
}

// payload is the data of event n: as JSON text it has 20 bytes.
func payload(n int) string { return fmt.Sprintf("%018d", n) }

// number is the inverse of payload.
func number(data string) int {
	n, err := strconv.Atoi(data)
	if err != nil {
		panic(err) // an event that nobody here has published
	}
	return n
}

// bed is a candidate in its database.
type bed struct {
	system
	*database
}

// newBed opens a candidate in a fresh database. close ends both; so does the end of the test.
func newBed(tb testing.TB, c candidate) *bed {
	tb.Helper()
	db := newDatabase(tb)
	s, err := c.open(tb.Context(), db.url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.close)
	return &bed{s, db}
}

// consume runs the consumer until stop is called or the test ends.
func (d *bed) consume(tb testing.TB, handle handler) (stop func()) {
	tb.Helper()
	stopSystem, err := d.start(context.WithoutCancel(tb.Context()), handle)
	if err != nil {
		tb.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := stopSystem(); err != nil {
			tb.Errorf("stop: %v", err)
		}
	}
	tb.Cleanup(stop)
	return stop
}

// commit publishes one event in a transaction of its own.
func (d *bed) commit(ctx context.Context, conn *pgx.Conn, n int) (err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := d.publish(ctx, tx, payload(n)); err != nil {
		return errors.Join(fmt.Errorf("publish: %w", err), tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// waitSettled blocks until every event has a durable outcome, or the deadline.
func (d *bed) waitSettled(tb testing.TB, deadline time.Time) bool {
	tb.Helper()
	for {
		var pending bool
		if err := d.pool.QueryRow(tb.Context(), d.anyPending()).Scan(&pending); err != nil {
			tb.Fatal(err)
		}
		if !pending {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(2 * time.Millisecond)
	}
}
