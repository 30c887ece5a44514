// Package peers measures Outbox beside other Go libraries that bring an event from a PostgreSQL transaction to a handler:
// River (a job queue) and watermill-sql (a publish/subscribe library). It is a module of its own, so that nothing of them
// enters the product.
//
// Run it with
//
//	make bench/peers                               # all of it, three rounds of about six minutes
//	make bench/peers BENCH=Drain/.*/river ROUNDS=1 # some of it
//
// or, in this folder, with
//
//	go test -run '^$' -bench . -timeout 2h . -args -rounds=3 | tee peers.txt
//	go run ./table < peers.txt
//
// The last line makes Markdown tables of the medians. By default a run starts a private PostgreSQL with fsync on and stops it
// again. With OUTBOX_BENCH_DATABASE_URL (a postgres:// URL of a superuser) it works in temporary databases on that
// server.
//
// # How to read it
//
// Every line is one round of one peer with one set of settings, in a fresh database, with nothing else at
// work. The peers take turns within each round, so that a noisy minute hits them all alike:
//
//	benchstat -ignore /round -col /peer,/settings peers.txt
//
// For more rounds use -rounds; -count repeats each line on the spot, and then the turns are lost. The ns/op column is the
// duration of a whole measurement and says nothing. Percentiles that fewer than one sample lies beyond are left out.
//
//	Latency     one event at a time on an idle consumer: from the moment that the publisher has its commit acknowledged to the
//	            start of the handler
//	Steady      1,000 events a second from eight connections, whatever the consumer does (open loop): from the moment
//	            at which an event was to be published to the start of its handler, so the commit is in it
//	Drain       a backlog of 50,000 events of 20 bytes: from the first handler until the last event is acknowledged,
//	            completed or published in the database
//	Publishers  commits per second of 16 sessions with one event each, with the consumer at work, and how long
//	            such a transaction takes
//	Idle        what the consumer costs while nothing happens: transactions, and bytes of write-ahead log
//
// The README of this folder says how each peer was configured and why, what each does that the others do not, and what a
// figure does not mean.
package peers
