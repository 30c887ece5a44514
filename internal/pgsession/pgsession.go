// Package pgsession configures the worker's dedicated sessions (listener, owner, gate):
// sessions that stay open for days, mostly idle, and whose death must be noticed on both
// ends within seconds.
package pgsession

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// A dead peer is noticed after idle + count × interval = 11 s of silence, and after
// userTimeout where data is waiting for its acknowledgement. The listener's probe is
// faster; this is for the ends that have no probe.
const (
	keepaliveIdle     = 5 * time.Second
	keepaliveInterval = 2 * time.Second
	keepaliveCount    = 3
	userTimeout       = 10 * time.Second
)

// settings are set in every dedicated session: PostgreSQL manual, chapter "Server Configuration",
// sections "Connections and Authentication" and "Client Connection Defaults". Each is best effort.
var settings = []setting{
	// The server notices a client that is gone while a statement runs (PostgreSQL 14, Linux).
	{"client_connection_check_interval", "1s"},
	// The server notices a client that is gone while the session is idle, and so lets go of
	// its advisory locks. Without effect on a Unix socket.
	{"tcp_keepalives_idle", seconds(keepaliveIdle)},
	{"tcp_keepalives_interval", seconds(keepaliveInterval)},
	{"tcp_keepalives_count", strconv.Itoa(keepaliveCount)},
	{"tcp_user_timeout", strconv.FormatInt(userTimeout.Milliseconds(), 10)},
	// Limits that a database or role has for ordinary clients would end sessions that live long by design.
	{"idle_session_timeout", "0"}, // PostgreSQL 14
	{"statement_timeout", "0"},
	{"transaction_timeout", "0"}, // PostgreSQL 17
	// A snapshot that outlives its statement would hide events.
	{"default_transaction_isolation", "read committed"},
}

type setting struct{ name, value string }

// Config returns a copy of base for one dedicated session with the given role, for instance "listener".
//
// The session's application_name is "outbox/<role>", followed by the one of base if it has one.
// The copy is for one connection at a time. Its settings are made after connecting and not as startup parameters, which a pooler refuses
// (08P01); a server that does not know one of them goes without. Hooks of base are kept.
func Config(base *pgx.ConnConfig, role string) *pgx.ConnConfig {
	cfg := base.Copy()
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = make(map[string]string)
	}
	cfg.RuntimeParams["application_name"] = applicationName(role, cfg.RuntimeParams["application_name"])

	// Not DialFunc: base may have one of its own (a cloud provider's connector, connect_timeout).
	wrap := cfg.AfterNetConnect
	cfg.AfterNetConnect = func(ctx context.Context, c *pgconn.Config, conn net.Conn) (net.Conn, error) {
		watchPeer(conn)
		if wrap != nil {
			return wrap(ctx, c, conn)
		}
		return conn, nil
	}

	keep := watchReads(cfg)
	after := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		keep(conn)
		if err := apply(ctx, conn, settings); err != nil {
			return fmt.Errorf("set up session: %w", err)
		}
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
	return cfg
}

// applicationName puts our part first, since the server cuts the name at 63 bytes.
func applicationName(role, given string) string {
	name := "outbox/" + role
	if given == "" || given == name || strings.HasPrefix(given, "outbox/") {
		return name
	}
	return name + " " + given
}

// apply makes the settings in one round trip, each in a transaction of its own, so that one
// that the server does not have costs only itself.
//
// Nothing is set through a pooler: the settings would stay behind in a server session that other
// clients get next. A pooler shows by announcing a process id of its own.
func apply(ctx context.Context, conn *pgconn.PgConn, settings []setting) error {
	// current_setting passes over what the server's version does not have, without an error in its log.
	const sql = `SELECT pg_catalog.set_config($1, $2, false)
		WHERE pg_catalog.pg_backend_pid() = $3 AND pg_catalog.current_setting($1, true) IS NOT NULL`
	// int8, since what a pooler announces uses all 32 bits.
	types := []uint32{pgtype.TextOID, pgtype.TextOID, pgtype.Int8OID}
	pid := []byte(strconv.FormatUint(uint64(conn.PID()), 10))

	p := conn.StartPipeline(ctx)
	for _, s := range settings {
		p.SendQueryParams(sql, [][]byte{[]byte(s.name), []byte(s.value), pid}, types, nil, nil)
		p.SendPipelineSync()
	}
	err := p.Flush()
	for done := false; err == nil && !done; {
		done, err = readResult(p)
	}
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	return err
}

// readResult reads the next result of p; done means that there was none left.
func readResult(p *pgconn.Pipeline) (done bool, err error) {
	result, err := p.GetResults()
	if rows, ok := result.(*pgconn.ResultReader); ok {
		_, err = rows.Close()
	}
	if dispensable(err) {
		return false, nil
	}
	return result == nil, err
}

// dispensable tells whether a session can do without the setting that failed with err.
func dispensable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains([]string{
		"22023", // invalid_parameter_value: not on the server's platform
		"42501", // insufficient_privilege: a managed server's restriction
	}, pgErr.Code)
}

// watchPeer makes the kernel notice a dead peer of conn. What is not TCP needs nothing, and a
// system that refuses goes without: a session that is noticed late is better than none.
func watchPeer(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable:   true,
		Idle:     keepaliveIdle,
		Interval: keepaliveInterval,
		Count:    keepaliveCount,
	})
	setUserTimeout(tcp, userTimeout)
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
