// Package bench measures the worker against what PostgreSQL itself can do on the same machine, in the same run.
//
// Run it with
//
//	go test -run '^$' -bench . ./bench
//
// (or make bench, make bench BENCH=Latency). By default each run starts a private PostgreSQL with fsync on and stops it
// again. With OUTBOX_BENCH_DATABASE_URL (a postgres:// URL of a role that may create databases) it works in
// temporary databases on that server.
//
// # How to read it
//
// Absolute figures depend on the machine, on its disk and on what else it does. What travels is the ratio: every benchmark
// runs its floor (the least that any program must do for the same effect) beside the worker, alternating with it, on a
// table with the same columns, indexes and triggers, and reports worker, floor, and the one divided by the
// other. The ns/op column is the duration of a whole round and says nothing. Nothing fails because it is
// slow.
//
// # Latency
//
// The time from the moment that a publisher has its commit acknowledged to the start of the handler, with the
// worker idle: one event at a time, the next one after the last is settled and a pause. The server sends
// notifications after the commit and its answer to the publisher about at the same time, so this is the time that
// the outbox adds.
//
//	p50-us, p99-us               the worker
//	floor-p50-us, floor-p99-us   one connection that LISTENs, and on a notification runs SELECT … WHERE id > last
//	                             and sends the event through a channel
//	ratio-p50, ratio-p99         worker ÷ floor; 1 is the best there can be
//
// It is bounded by two wake-ups of processes and one round trip with a small query: the server wakes the
// listening session, that wakes this process, which asks for the rows. The worker's extra is the
// way from the listening connection to the one that fetches: another goroutine and socket, and another process of the
// server, which has slept. The query is the floor's, as long as nothing is late, in retry or dead. p99 needs a quiet machine.
//
// # Drain
//
// How fast a worker works off a backlog with a handler that does nothing: events of 20 and 800 bytes of data,
// of 1, 100 and 100,000 aggregates. The clock runs from the first event handled until the last one is settled, so the
// rate is that of durable outcomes.
//
//	events/s         the worker
//	floor-events/s   a loop that fetches pages of 1,000 by id, and two connections that
//	                 UPDATE … SET published_at = now() WHERE id = ANY (page)
//	ratio            worker ÷ floor; 1 is as fast as a loop without order, retries, or bounds on memory
//
// The floor is bounded by the updates: each writes a new version of the row and an entry in every index whose
// predicate it still meets. Where server and worker share few cores, as here, whatever the worker computes is
// taken from the server's time.
//
// # Memory
//
// The resident size of a worker in a process of its own, with a million events pending.
//
//	blocked-MiB   behind handlers that do not return, 64 of them
//	peak-MiB      the most that it ever had, the following drain at full speed included
//
// It is bounded by the rows and bytes in flight (see Config.MaxBatchSize and Config.MaxBatchBytes), not by the backlog.
package bench
