// Package bench measures the outbox against what PostgreSQL itself can do on the same machine, in the same run.
//
// Run it with
//
//	go test -run '^$' -bench . -benchtime 1x ./bench
//
// (or make bench, make bench BENCH=Latency COUNT=10, which benchstat compares). It takes about ten minutes on two cores. By default
// each run starts a private PostgreSQL with fsync on and stops it again. With OUTBOX_BENCH_DATABASE_URL (an address of a role that may
// create databases) it works in temporary databases on that server. make bench/report writes what came out to RESULTS.md, with charts.
// `outbox bench` answers the same questions in less than a minute, for those who have no source at hand.
//
// # How to read it
//
// Absolute figures depend on the machine, on its disk and on what else it does. What travels is the ratio: every benchmark
// runs its floor (a bare program with the same effect) beside the outbox, taking turns with it, on a
// table with the same columns, indexes and triggers, and reports the outbox, the floor, and the one divided by the
// other. Where a round is repeated, medians are reported. Nothing fails because it is slow. The workloads are those of internal/measure.
//
// # Latency
//
// The time to the start of the handler. Percentiles are those of an HdrHistogram, in microseconds, three digits exact.
//
//	p50-us, p95-us, p99-us, p99.9-us, max-us   the worker
//	floor-p50-us …                             one session that is woken the same way, and then runs SELECT … WHERE id > last
//	                                           and sends the event through a channel
//	ratio-p50, ratio-p99                       worker ÷ floor; 1 is as good as a bare session. Below 1 where the
//	                                           bare session is not at its best: it asks after each notification, so
//	                                           it costs publishers more where events come fast
//
// Idle: one event at a time from one publisher; the next one after the last is settled and a pause. It counts from the moment that the
// publisher has its commit acknowledged. The server sends notifications after the commit and its answer to the publisher about at the
// same time, so this is the time that the outbox adds. The arms alternate event by event. A figure below zero, where the handler began
// before the publisher had its answer, counts as zero.
//
// It is bounded by two wake-ups of processes and one round trip with a small query: the server wakes the
// listening session, that wakes this process, which asks for the rows. The worker's extra is the
// way from the listening connection to the one that fetches: another goroutine and socket, and another process of the
// server, which has slept. The query is the floor's, as long as nothing is late, in retry or dead. p99 needs a quiet machine.
//
// Woken: the same without notifications; the publisher is in the worker's process and calls Worker.Wake after its commit. The floor's
// session is woken through a channel.
//
// Steady (100, 1,000 and 3,000 events a second): eight sessions publish by a schedule with irregular gaps (a Poisson process), whether or
// not earlier events have been published. An event counts from the time that it was due: where a publisher is late, because the server
// is, the wait and the commit are part of the figure (no coordinated omission). The floor has the same arrivals, with a NOTIFY in every
// transaction, and no more than that to do. It takes turns with the worker in slices of three seconds.
//
//	commit-p50-us, commit-p99-us   the worker's, counted from the acknowledgement of the commit
//	unsent                         events that were due and that the server had no time to take; they count with the time until given up
//	floor-missed                   events that the floor never saw, since they committed after one with a higher id: it is no outbox
//
// The clock that sends events when they are due is late by about a tenth of a millisecond, in both arms.
//
// Polling: the same at 50 events a second, without notifications. The floor looks every 250 ms, as the worker does once it has noticed.
//
// # Drain
//
// How fast a worker works off a backlog with a handler that does nothing. One thing is varied at a time: the length of the backlog (ten
// thousand to a million), the aggregates (1, 100, 100,000), the data (20 bytes, 800 bytes, 8 KiB that do not compress). The clock runs from
// the first event handled until the last one is settled, so the rate is that of durable outcomes.
//
//	events/s         the worker
//	floor-events/s   a loop that fetches pages of 1,000 by id, and two connections that
//	                 UPDATE … SET published_at = now() WHERE id = ANY (page)
//	ratio            worker ÷ floor; 1 is as fast as a loop without order, retries, or bounds on memory
//
// The floor is bounded by the updates: each writes a new version of the row and an entry in every index whose
// predicate it still meets. Where server and worker share few cores, whatever the worker computes is
// taken from the server's time.
//
// With published=1000000 the table has a million events that were published after another session had opened a transaction, which is open
// all the while: held-snapshot, a REPEATABLE READ transaction that only reads; open-writer, one that has written to another table. What the
// published rows left in the indexes cannot be removed, and a scan that begins there would walk over it.
//
//	free-events/s   the worker on the same table, once the transaction has ended
//	ratio-free      with ÷ without; 1 is a worker that does not notice
//
// # Options
//
// What it costs the worker to do more than deliver: the drain of a hundred thousand events, with the option and without.
//
//	events/s         with it
//	floor-events/s   the worker without it
//	ratio            with ÷ without; 1 is for free
//
// audit: Config.Audit. Each event is copied to audit.events in the transaction that marks it, so the server writes a second row, and an entry
// in that table's key. metrics: Config.Observer of package metrics.
//
// # Publish
//
// What the outbox costs those who publish: commits a second of 1, 16 and 64 sessions that publish one event in each (BEGIN, INSERT, COMMIT,
// as fast as they can), while a worker delivers the events. Three modes take turns in slices of two seconds, on the same table.
//
//	commits/s                             gated, the default: a NOTIFY only while the worker sleeps
//	floor-commits/s                       no notifications, and a worker that polls
//	always-commits/s                      a NOTIFY in every transaction
//	ratio, ratio-always                   gated ÷ floor, gated ÷ always
//	p50-us …, floor-p50-us, always-p50-us from sending COMMIT to its acknowledgement
//
// NOTIFY takes a lock of the whole cluster at commit and holds it while the log is flushed, so commits that notify go one after
// another: the slower the disk, the wider the gap.
//
// # PublishBatch
//
// Events a second of one session that calls PublishBatch with 1, 10, 100 and 1,000 events, each call a transaction. The floor is one INSERT of
// the same rows from arrays, without notifications, with payloads that need no encoding and no check.
//
// # Idle
//
// What a worker costs that has nothing to do, in a process of its own.
//
//	queries/s   statements that it sends, counted where it sends them: fallback poll, sweep, probe
//	cpu-%       of one core, by getrusage
//
// The floor is nothing at all, so there is no ratio.
//
// # Memory
//
// The resident size of a worker in a process of its own, with nothing and with a million events pending.
//
//	blocked-MiB   behind handlers that do not return, 64 of them
//	peak-MiB      the most that it ever had, the following drain at full speed included
//
// It is bounded by the rows and bytes in flight (see Config.MaxBatchSize and Config.MaxBatchBytes), not by the backlog. The floor is the
// size with nothing pending.
package bench
