package peers

import (
	"testing"
	"time"
)

const (
	// idleAfter is when a consumer has come to rest, and idleFor how long it is watched.
	idleAfter = 2 * time.Second
	idleFor   = 5 * time.Second
)

// BenchmarkIdle measures what a consumer costs while nothing happens: see the package's documentation.
func BenchmarkIdle(b *testing.B) { takeTurns(b, measureIdle) }

func measureIdle(b *testing.B, c candidate) {
	bed := newBed(b, c)
	stop := bed.consume(b, func(string) {})
	time.Sleep(idleAfter)
	transactions, log := bed.activity(b)
	time.Sleep(idleFor)
	transactionsAfter, logAfter := bed.activity(b)
	stop()
	b.ReportMetric((transactionsAfter-transactions)/idleFor.Seconds(), "transactions/s")
	b.ReportMetric((logAfter-log)/idleFor.Seconds(), "WAL-B/s")
}

// activity returns how many transactions the database has seen, and the end of the server's log in bytes. The statistics of a
// session that is at work can be a second old.
func (d *bed) activity(b *testing.B) (transactions, log float64) {
	b.Helper()
	err := d.pool.QueryRow(b.Context(), `
		SELECT (xact_commit + xact_rollback)::float8, (pg_current_wal_lsn() - '0/0')::float8
		FROM pg_stat_database WHERE datname = current_database()`).Scan(&transactions, &log)
	if err != nil {
		b.Fatal(err)
	}
	return transactions, log
}
