package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

// databaseFlags are the flags of every command that needs the database.
type databaseFlags struct {
	url            string
	connectTimeout duration
}

func (d *databaseFlags) add(cmd *cobra.Command) {
	d.connectTimeout = duration(outbox.DefaultConnectTimeout)
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&d.url, "database-url", "", "the database, as a `URL` (postgres://user:password@host/database) or as host=… dbname=…; "+
		"else OUTBOX_DATABASE_URL, DATABASE_URL, or PGHOST, PGDATABASE and the like")
	cmd.Flags().Var(&d.connectTimeout, "connect-timeout", "how long connecting may take, at first and later")
}

// address says where the database is, and who said so.
type address struct {
	url    string // for packages that take one
	source string // the flag or variable that it came from
	config *pgxpool.Config
	// patience is how long connecting may take.
	patience time.Duration
}

// fromPG is an address that leaves everything to the PG* variables, which pgx reads itself.
const fromPG = "postgres://"

// address returns the database's address: flag, OUTBOX_DATABASE_URL, DATABASE_URL, PG*.
func (a *app) address(cmd *cobra.Command, flags *databaseFlags) (*address, error) {
	url, source := flags.url, a.spelled("database-url")
	switch {
	case url != "":
	case cmd.Flags().Changed("database-url"):
		return nil, usageErrorf("--database-url is empty")
	case a.environment["DATABASE_URL"] != "":
		url, source = a.environment["DATABASE_URL"], "DATABASE_URL"
	case a.pgVariables():
		url, source = fromPG, "the PG* variables"
	default:
		// Psql would try a socket and the user's own name; a worker that does so on the wrong machine
		// would only puzzle people.
		return nil, usageErrorf("no database given: set --database-url, OUTBOX_DATABASE_URL, DATABASE_URL, or PGHOST, PGDATABASE and the like")
	}
	addr, err := parseAddress(url, source)
	if err != nil {
		return nil, err
	}
	connect := addr.config.ConnConfig
	if connect.ConnectTimeout == 0 || cmd.Flags().Changed("connect-timeout") {
		connect.ConnectTimeout = time.Duration(flags.connectTimeout)
	}
	addr.patience = connect.ConnectTimeout
	return addr, nil
}

// pgVariables tells whether a variable says where PostgreSQL is, and not only how to talk to it.
func (a *app) pgVariables() bool {
	for _, name := range []string{"PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"} {
		if a.environment[name] != "" {
			return true
		}
	}
	return false
}

// parseAddress reports what is wrong with an address without quoting it.
func parseAddress(url, source string) (*address, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, usageErrorf("%s: %s", source, addressProblem(err))
	}
	// Of a password with an @ the rest ends up in the host, which errors would show.
	if strings.Contains(serverName(&config.ConnConfig.Config), "@") {
		return nil, usageErrorf("%s: %s", source, addressShape)
	}
	return &address{url: url, source: source, config: config}, nil
}

const addressShape = "not a database address, which is postgres://user:password@host:5432/database, " +
	"with special characters percent-encoded, or host=… port=… user=… password=… dbname=…"

// addressProblem is what pgx says about an address, without the address.
func addressProblem(err error) string {
	_, problem, found := strings.Cut(strings.ReplaceAll(err.Error(), "\n", " "), "`: ")
	// Of an address that has no shape pgx quotes parts, which may belong to the password.
	if !found || strings.Contains(problem, "`") || strings.HasPrefix(problem, "failed to parse as") {
		return addressShape
	}
	return problem
}

// connect opens one connection, for one command.
func (addr *address) connect(ctx context.Context, command string) (*pgx.Conn, error) {
	config := addr.connConfig(command)
	if config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// A few statements are not worth preparing, and a transaction pooler could not keep them.
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return pgx.ConnectConfig(ctx, config)
}

func (addr *address) connConfig(command string) *pgx.ConnConfig {
	config := addr.config.ConnConfig.Copy()
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = pgnames.Application + command
	}
	return config
}

// database is the name of the database: without one the server takes the user's.
func (addr *address) database() string {
	return cmp.Or(addr.config.ConnConfig.Database, addr.config.ConnConfig.User)
}

// server names host and port.
func (addr *address) server() string {
	return serverName(&addr.config.ConnConfig.Config)
}

func serverName(c *pgconn.Config) string {
	var names []string
	for _, f := range append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}, c.Fallbacks...) {
		name := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))
		if network, path := pgconn.NetworkAddress(f.Host, f.Port); network == "unix" {
			name = path
		}
		if len(names) == 0 || names[len(names)-1] != name { // with and without TLS
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// explain turns an error of the database into one that says what to do, where it does not yet.
func (addr *address) explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return explain(err, "%s", addr.refusal(connect))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return explain(err, "%s did not answer within %s: check %s, or raise --connect-timeout", addr.server(), addr.patience, addr.source)
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && pg.Code == "25006": // read_only_sql_transaction
		return explain(err, "%s is a standby or read-only: connect to the primary (with several hosts in %s, add target_session_attrs=read-write)",
			addr.server(), addr.source)
	case ok && pg.Code == "55P03": // lock_not_available
		return explain(err, "another session keeps events.outbox, or one of its events, locked: \"Cannot mark\" in docs/operations.md finds it")
	case lostStatement(err):
		return explain(err, "%s seems to be a transaction pooler, through which prepared statements fail (%s, SQLSTATE %s): add %s to the address in %s",
			addr.server(), pg.Message, pg.Code, withoutStatements, addr.source)
	}
	return err
}

// explainMigration is explain for the migrations, which no setting of the address helps through a transaction pooler.
func (addr *address) explainMigration(err error) error {
	if lostStatement(err) {
		pg, _ := errors.AsType[*pgconn.PgError](err)
		return explain(err, "%s seems to be a transaction pooler, through which prepared statements fail (%s, SQLSTATE %s): migrations need the server's direct address, correct %s",
			addr.server(), pg.Message, pg.Code, addr.source)
	}
	return addr.explain(err)
}

// withoutStatements is the setting of an address that keeps pgx from preparing statements.
const withoutStatements = "default_query_exec_mode=exec"

// lostStatement tells whether a prepared statement was on another server connection than expected: a transaction pooler
// switches them.
func lostStatement(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "42P05" || pg.Code == "26000") // duplicate_prepared_statement, invalid_sql_statement_name
}

// explainPrivilege says what to do about a privilege that is missing, where the package that found it does not.
func explainPrivilege(err error, user string) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "42501" || errors.Is(err, outbox.ErrPrivileges) { // insufficient_privilege
		return err
	}
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting {
		return err
	}
	return explain(err, `user %q lacks a privilege (%s): see docs/roles.md for what each role needs`, user, pg.Message)
}

// refusal says why there is no connection, and what to do.
func (addr *address) refusal(err *pgconn.ConnectError) string {
	server, user, database := serverName(err.Config), err.Config.User, cmp.Or(err.Config.Database, err.Config.User)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case "28P01": // invalid_password
			return fmt.Sprintf("wrong password for user %q at %s: correct it in %s, PGPASSWORD or ~/.pgpass", user, server, addr.source)
		case "28000": // invalid_authorization_specification
			return fmt.Sprintf("%s does not let user %q in (%s): correct the user in %s, or the server's pg_hba.conf", server, user, pg.Message, addr.source)
		case "3D000": // invalid_catalog_name
			return fmt.Sprintf("database %q does not exist at %s: create it (createdb), or correct %s", database, server, addr.source)
		case "42501": // insufficient_privilege
			return fmt.Sprintf("user %q may not connect to database %q at %s: GRANT CONNECT ON DATABASE %s TO %s",
				user, database, server, pgx.Identifier{database}.Sanitize(), pgx.Identifier{user}.Sanitize())
		case "53300": // too_many_connections
			return fmt.Sprintf("%s has no connection left (%s): end some, or raise its max_connections", server, pg.Message)
		case "57P03": // cannot_connect_now
			return fmt.Sprintf("%s does not take connections now (%s): try again", server, pg.Message)
		}
		return fmt.Sprintf("%s refuses the connection: %s (SQLSTATE %s); check %s", server, pg.Message, pg.Code, addr.source)
	}
	if errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrStandbyConnection) {
		return fmt.Sprintf("no primary among %s, only standbys: check target_session_attrs and the hosts in %s", server, addr.source)
	}
	return fmt.Sprintf("cannot reach PostgreSQL at %s (%s): is it running, and is the address in %s right?", server, causes(err), addr.source)
}

// refusedTLS is how pgx words that the server has no TLS. There is no type to tell it by.
const refusedTLS = "server refused TLS connection"

// causes says why there is no connection. That the server has no TLS is no cause where it was tried without as well.
func causes(err *pgconn.ConnectError) string {
	list := reasons(err.Unwrap())
	plain := err.Config.TLSConfig == nil ||
		slices.ContainsFunc(err.Config.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.TLSConfig == nil })
	if plain && len(list) > 1 {
		list = slices.DeleteFunc(list, func(reason string) bool { return strings.Contains(reason, refusedTLS) })
	}
	return strings.Join(list, "; ")
}

// reasons returns what went wrong at each address that was tried, without repetition and without what the line
// says anyway.
func reasons(err error) (list []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			for _, reason := range reasons(e) {
				if len(list) == 0 || list[len(list)-1] != reason { // with and without TLS
					list = append(list, reason)
				}
			}
		}
		return list
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return []string{fmt.Sprintf("host %q: %s", dns.Name, dns.Err)}
	}
	if pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return []string{"no answer in time"}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return []string{op.Err.Error()}
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // without the address
	}
	return []string{err.Error()}
}
