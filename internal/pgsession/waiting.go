package pgsession

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// epoch makes times that survive a change of the wall clock.
var epoch = time.Now()

// reader knows since when its reader has been waiting for the server's next bytes.
type reader struct {
	io.Reader
	since atomic.Int64 // nanoseconds since epoch; 0: nobody waits
}

func (r *reader) Read(p []byte) (int, error) {
	r.since.Store(int64(time.Since(epoch)))
	defer r.since.Store(0)
	return r.Reader.Read(p)
}

// readerKey is where a connection keeps its reader.
const readerKey = "outbox/reader"

// Waiting returns how long the session has been waiting for the server's next bytes: 0 while nobody asks it
// anything, and while an answer is being taken in, however long it is. It can be called from any goroutine. conn
// must have been made with [Config].
func Waiting(conn *pgx.Conn) func() time.Duration {
	r := conn.PgConn().CustomData()[readerKey].(*reader)
	return func() time.Duration {
		if since := r.since.Load(); since != 0 {
			return time.Since(epoch) - time.Duration(since)
		}
		return 0
	}
}

// watchReads makes cfg's connection keep its reader. The frontend's reader and not the socket's, whose type belongs
// to the hooks of others.
func watchReads(cfg *pgx.ConnConfig) (keep func(conn *pgconn.PgConn)) {
	var newest atomic.Pointer[reader]
	build := cfg.BuildFrontend
	cfg.BuildFrontend = func(from io.Reader, to io.Writer) *pgproto3.Frontend {
		r := &reader{Reader: from}
		newest.Store(r)
		return build(r, to)
	}
	return func(conn *pgconn.PgConn) { conn.CustomData()[readerKey] = newest.Load() }
}
