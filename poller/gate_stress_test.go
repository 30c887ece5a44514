package poller

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// stressFor makes TestGateStress run for so long, instead of a number of rounds: make stress.
var stressFor = flag.Duration("stress", 0, "run the stress test of the gate for so long")

// TestGateStress looks for lost wake-ups. A round publishes a few transactions from some of many sessions, in all the ways
// that a transaction can go, and waits until their events have been handled: nothing that is published later can make up for a
// wake that was lost, the fallback never fires, nor does the look of an open gate once it has found nothing for a while.
// The gate opens and closes at the slightest reason, and sessions of the worker are ended while others publish.
func TestGateStress(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	b := prepare(t, db, nil)
	b.paceLimits = paceLimits{
		openAt: 3, openWithin: 20 * time.Millisecond,
		keepAt: 3, keepWithin: 3 * time.Millisecond,
		look: time.Millisecond, lookAtMost: never,
	}
	b.run()
	b.hear(db)
	deferred(t, db)

	const publishers = 16
	sessions := make([]*stressPublisher, publishers)
	for i := range sessions {
		sessions[i] = &stressPublisher{conn: db.Connect(t), random: rand.New(rand.NewPCG(uint64(i), 3))}
	}
	stop := b.watchGate()
	random := rand.New(rand.NewPCG(1, 3))
	rounds, published := 0, 0
	for began := time.Now(); ; rounds++ {
		if *stressFor > 0 && time.Since(began) > *stressFor || *stressFor == 0 && rounds == 300 || testing.Short() && rounds == 60 {
			break
		}
		var group sync.WaitGroup
		var committed atomic.Int64
		for _, i := range random.Perm(publishers)[:1+random.IntN(publishers)] {
			group.Go(func() {
				n, err := sessions[i].publish(1 + sessions[i].random.IntN(4))
				if err != nil {
					t.Error(err)
				}
				committed.Add(int64(n))
			})
		}
		if random.IntN(4) == 0 { // only while there is something to lose: a new session looks, and would find what a wake has lost
			time.Sleep(time.Duration(random.IntN(5000)) * time.Microsecond)
			b.end([]string{"gate", "gate", "listener", "owner"}[random.IntN(4)])
		}
		group.Wait()
		if t.Failed() {
			break
		}
		published += int(committed.Load())
		b.waitPublished(published)
	}
	seen := stop()
	if n := b.Stats().Rescues; n != 0 {
		t.Errorf("%d events were left to the sweep", n)
	}
	for _, s := range []GateState{GateLost, GateOpen, GateClosing, GateClosed} {
		if seen[s] == 0 {
			t.Errorf("the gate was never seen in state %d: %v", s, seen)
		}
	}
	t.Logf("%d rounds, %d events, %d calls; states seen %v", rounds, published, len(b.seen()), seen)
}

// waitPublished blocks until n events have been handled, each once or more.
func (b *bundle) waitPublished(n int) {
	b.t.Helper()
	b.wait("the round's events", func() bool { return b.distinct() >= n })
}

// distinct returns how many events have been handled, however often.
func (b *bundle) distinct() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.known = map[int64]struct{}{}
	}
	for _, c := range b.calls[b.counted:] {
		b.known[c.id] = struct{}{}
	}
	b.counted = len(b.calls)
	return len(b.known)
}

// deferred makes a table whose rows become events at the commit.
func deferred(t *testing.T, db *pgtest.DB) {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), `
		CREATE TABLE orders (id BIGSERIAL);
		CREATE FUNCTION order_event() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('order', gen_random_uuid(), 'Happened', '{"version": 1, "data": {}}');
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER order_event AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION order_event()`)
	if err != nil {
		t.Fatal(err)
	}
}

// watchGate looks at the gate until stop is called, which returns how often it was seen in each state.
func (b *bundle) watchGate() (stop func() map[GateState]int) {
	done, ended := make(chan struct{}), make(chan struct{})
	seen := map[GateState]int{}
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(500 * time.Microsecond):
			}
			seen[b.Stats().Gate]++
		}
	}()
	return func() map[GateState]int {
		close(done)
		<-ended
		return seen
	}
}

// stressPublisher is one session.
type stressPublisher struct {
	conn   *pgx.Conn
	random *rand.Rand
}

// errRolledBack ends a transaction that changed its mind.
var errRolledBack = errors.New("rolled back")

// publish runs so many transactions and returns how many events they committed.
func (p *stressPublisher) publish(transactions int) (events int, err error) {
	for range transactions {
		if p.random.IntN(3) == 0 {
			time.Sleep(time.Duration(p.random.IntN(3000)) * time.Microsecond)
		}
		n := 0
		options := pgx.TxOptions{}
		if p.random.IntN(4) == 0 {
			options.IsoLevel = pgx.Serializable
		}
		err := pgx.BeginTxFunc(context.Background(), p.conn, options, func(tx pgx.Tx) (err error) {
			n, err = p.act(tx)
			return err
		})
		switch {
		case errors.Is(err, errRolledBack):
		case err != nil:
			return events, err
		default:
			events += n
		}
	}
	return events, nil
}

// act does what one transaction does.
func (p *stressPublisher) act(tx pgx.Tx) (events int, err error) {
	ctx := context.Background()
	for range 1 + p.random.IntN(3) {
		switch p.random.IntN(8) {
		case 0: // a savepoint that is taken back
			if err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
				if err := p.insert(ctx, inner); err != nil {
					return err
				}
				return errRolledBack
			}); !errors.Is(err, errRolledBack) {
				return 0, err
			}
		case 1: // one that is kept
			if err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { return p.insert(ctx, inner) }); err != nil {
				return 0, err
			}
			events++
		case 2: // at the commit
			if _, err := tx.Exec(ctx, "INSERT INTO orders DEFAULT VALUES"); err != nil {
				return 0, err
			}
			events++
		default:
			if err := p.insert(ctx, tx); err != nil {
				return 0, err
			}
			events++
		}
	}
	switch n := p.random.IntN(500); {
	case n == 0: // longer than the worker waits at a stretch
		_, err = tx.Exec(ctx, "SELECT pg_sleep($1)", p.random.Float64()/4)
	case n < 50:
		return 0, errRolledBack
	case n < 100:
		_, err = tx.Exec(ctx, "SELECT pg_sleep($1)", p.random.Float64()/200)
	}
	return events, err
}

func (p *stressPublisher) insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('thing', gen_random_uuid(), 'Happened', '{"version": 1, "data": {}}')`)
	return err
}
