package poller

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// BenchmarkLanes measures what one event costs in the lanes, from its offer to its settlement, where a page of 100
// comes at a time.
func BenchmarkLanes(b *testing.B) {
	const page = 100
	for _, aggregates := range []int{1, 100, 100_000} {
		b.Run(fmt.Sprintf("aggregates=%d", aggregates), func(b *testing.B) {
			keys := make([]aggregate, aggregates)
			for i := range keys {
				var id uuid.UUID
				binary.BigEndian.PutUint64(id[8:], uint64(i))
				keys[i] = aggregate{"order", id}
			}
			rows := make([]row, page)
			settlements := make([]settlement, page)
			ls := newLanes(Config{Concurrency: DefaultConcurrency, LaneCap: page, MaxBatchSize: DefaultMaxBatchSize, MaxBatchBytes: DefaultMaxBatchBytes}.limits())
			b.ReportAllocs()
			b.ResetTimer()
			for begin := 0; begin < b.N; begin += page {
				for i := range rows {
					rows[i] = row{id: int64(begin + i + 1), aggregate: keys[(begin+i)*7919%aggregates]}
					settlements[i] = settlement{outcome: outcome{row: &rows[i], result: &dispatch.Outcome{Kind: dispatch.Published}}, applied: true}
					ls.offer(&rows[i])
				}
				for r := ls.next(); r != nil; r = ls.next() {
					ls.done(r, false)
				}
				ls.settled(settlements)
			}
			b.StopTimer()
			if inFlight, running := ls.counts(); inFlight+running+len(ls.byKey) != 0 {
				b.Fatalf("%d in flight, %d running, %d lanes", inFlight, running, len(ls.byKey))
			}
		})
	}
}
