package peers

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestDelivery keeps the benchmarks from rotting: every candidate hands committed events to the handler, and no others.
func TestDelivery(t *testing.T) {
	t.Parallel()
	const events = 20
	for _, c := range candidates() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			bed := newBed(t, c)
			handled := make(chan int, 10*events)
			stop := bed.consume(t, func(data string) { handled <- number(data) })
			conn := bed.connect(t)
			rolledBack := errors.New("rolled back")
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				return errors.Join(bed.publish(t.Context(), tx, payload(events)), rolledBack)
			})
			if !errors.Is(err, rolledBack) {
				t.Fatal(err)
			}
			for n := range events / 2 {
				if err := bed.commit(t.Context(), conn, n); err != nil {
					t.Fatal(err)
				}
			}
			err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				var data []string
				for n := events / 2; n < events; n++ {
					data = append(data, payload(n))
				}
				return bed.publishMany(t.Context(), tx, data)
			})
			if err != nil {
				t.Fatal(err)
			}
			seen := map[int]bool{}
			for deadline := time.After(patience); len(seen) < events; {
				select {
				case n := <-handled:
					seen[n] = true
				case <-deadline:
					t.Fatalf("only %d of %d events were handled", len(seen), events)
				}
			}
			if !bed.waitSettled(t, time.Now().Add(patience)) {
				t.Error("an event was handled and has no durable outcome")
			}
			stop()
			if seen[events] {
				t.Error("an event was handled whose transaction was rolled back")
			}
		})
	}
}
