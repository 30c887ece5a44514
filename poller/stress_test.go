package poller

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// TestStress publishes from many sessions at once: short and long transactions, several events each,
// savepoints that are rolled back, whole transactions that are rolled back, and an unrelated writer that stays open. An
// aggregate is locked before ids are drawn, so its order is guaranteed. The fallback never fires and
// nothing may be left to the sweep.
func TestStress(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	const publishers, aggregates = 12, 8
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	b := start(t, db, nil)
	writer := begin(t, db)
	if _, err := writer.Exec(t.Context(), "CREATE TABLE unrelated (i int); INSERT INTO unrelated VALUES (1)"); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	var committed []int64
	var group sync.WaitGroup
	for p := range publishers {
		conn := db.Connect(t)
		random := rand.New(rand.NewPCG(uint64(p), 7))
		group.Go(func() {
			for range rounds {
				ids, err := publishSome(conn, random, aggregates)
				if err != nil {
					t.Error(err)
					return
				}
				b.Wake()
				mu.Lock()
				committed = append(committed, ids...)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	b.Wake()
	b.waitRows(0, "published_at IS NULL")
	b.checkOrder(len(committed))
	seen := b.seen()
	slices.Sort(seen)
	slices.Sort(committed)
	if !slices.Equal(seen, committed) {
		t.Errorf("handled %d events, committed %d", len(seen), len(committed))
	}
	if n := b.Stats().Rescues; n != 0 {
		t.Errorf("%d events were left to the sweep", n)
	}
}

// publishSome runs one transaction and returns the ids that it committed.
func publishSome(conn *pgx.Conn, random *rand.Rand, aggregates int) (ids []int64, err error) {
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit it has nothing to do
	aggregate := random.IntN(aggregates)
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", aggregate); err != nil {
		return nil, err
	}
	for range 1 + random.IntN(3) {
		keep := random.IntN(4) > 0
		inner, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		var id int64
		err = inner.QueryRow(ctx, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('thing', $1, 'Happened', '{"version": 1, "data": {}}') RETURNING id`, aggregateID(aggregate)).Scan(&id)
		if err != nil {
			return nil, err
		}
		if !keep {
			if err := inner.Rollback(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if err := inner.Commit(ctx); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	switch random.IntN(10) {
	case 0:
		return nil, tx.Rollback(ctx)
	case 1:
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()/20); err != nil {
			return nil, err
		}
	}
	return ids, tx.Commit(ctx)
}
