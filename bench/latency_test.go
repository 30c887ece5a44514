package bench

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	outbox "github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

const (
	// latencyPairs is how many events of each arm a round measures: p99 then rests on ten samples.
	latencyPairs = 1000
	// latencyWarmUp events come first, unmeasured: plans and caches are made.
	latencyWarmUp = 50
)

// BenchmarkLatency measures the time from commit to handler on an idle worker: see the package's documentation.
//
// The two arms take turns, event by event. Each has a database of its own on the same server, because a
// notification wakes every listening session of its database.
func BenchmarkLatency(b *testing.B) {
	worker, floor := newWorkerArm(b), newFloorArm(b)
	for range latencyWarmUp {
		worker.measure(b)
		floor.measure(b)
	}
	worker.latencies, floor.latencies = nil, nil
	for b.Loop() {
		for range latencyPairs {
			worker.measure(b)
			floor.measure(b)
		}
	}
	for _, p := range []struct {
		name    string
		percent float64
	}{{"p50", 50}, {"p99", 99}} {
		w, f := worker.latencies.percentile(p.percent), floor.latencies.percentile(p.percent)
		b.ReportMetric(w, p.name+"-us")
		b.ReportMetric(f, "floor-"+p.name+"-us")
		b.ReportMetric(w/f, "ratio-"+p.name)
	}
}

// arrival is the start of a handler.
type arrival struct {
	id int64
	at time.Time
}

// arm publishes events one at a time and measures when they arrive.
type arm struct {
	publisher *pgx.Conn
	arrivals  chan arrival
	settle    func() // blocks until what arrived has been settled
	latencies samples
}

// newArm gives an arm its publisher: a session that does nothing else.
func newArm(b *testing.B, db *database) *arm {
	b.Helper()
	return &arm{publisher: db.connect(b), arrivals: make(chan arrival, 16), settle: func() {}}
}

// measure publishes an event in a transaction of its own and waits until it has arrived and is settled. Then it
// pauses, for an irregular time so that no timer of the worker's keeps step.
func (a *arm) measure(b *testing.B) {
	b.Helper()
	tx, err := a.publisher.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	id, err := outbox.Publish(b.Context(), tx, outbox.Message{
		AggregateType: "order", AggregateID: uuid.New(), EventType: "OrderPlaced", Data: "xxxxxxxxxxxxxxxxxx",
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := tx.Commit(b.Context()); err != nil {
		b.Fatal(err)
	}
	committed := time.Now()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for arrived := false; !arrived; {
		select {
		case e := <-a.arrivals:
			if arrived = e.id == id; arrived {
				a.latencies = append(a.latencies, e.at.Sub(committed))
			}
		case <-deadline.C:
			b.Fatalf("event %d has not arrived", id)
		}
	}
	a.settle()
	time.Sleep(time.Millisecond + rand.N(2*time.Millisecond))
}

func newWorkerArm(b *testing.B) *arm {
	b.Helper()
	db, _ := newDatabase(b)
	a := newArm(b, db)
	w, _ := startWorker(b, db.url, func(_ context.Context, e *outbox.Event) error {
		a.arrivals <- arrival{e.ID, time.Now()}
		return nil
	})
	<-w.Ready()
	a.settle = func() { waitIdle(b, w, func() bool { return true }) }
	return a
}

// newFloorArm starts the bare loop. Its events stay unpublished.
func newFloorArm(b *testing.B) *arm {
	b.Helper()
	db, _ := newDatabase(b)
	a := newArm(b, db)
	conn := db.connect(b)
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := conn.Exec(ctx, "LISTEN "+pgnames.WakeChannel); err != nil {
		b.Fatal(err)
	}
	fetched, ended := make(chan int64), make(chan error, 1)
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		for id := range fetched {
			a.arrivals <- arrival{id, time.Now()}
		}
	}()
	go func() {
		defer close(fetched)
		ended <- listenAndFetch(ctx, conn, fetched)
	}()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; ctx.Err() == nil {
			b.Errorf("floor: %v", err)
		}
		<-handled
	})
	return a
}

// listenAndFetch is the least that a notified consumer does.
func listenAndFetch(ctx context.Context, conn *pgx.Conn, fetched chan<- int64) error {
	var last int64
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `
			SELECT id, aggregate_type, aggregate_id, event_type, payload, occurred_at FROM events.outbox
			WHERE published_at IS NULL AND id > $1 ORDER BY id LIMIT 50`, last)
		if err != nil {
			return err
		}
		var e outbox.Event
		_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.AggregateType, &e.AggregateID, &e.Type, &e.Data, &e.OccurredAt}, func() error {
			last = e.ID
			fetched <- e.ID
			return nil
		})
		if err != nil {
			return err
		}
	}
}
