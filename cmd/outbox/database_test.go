package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/temppg"
	"github.com/seed-9a365b49/outbox/migrations"
)

// needing are the command lines that need a database in working order, and what they publish or print aside change nothing.
var needing = []string{"run --sink discard", "status", "publish --aggregate-type a --aggregate-id " + invoice + " --type E --data 1"}

func TestServerThatRefuses(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"28P01": `wrong password for user "ali" at 127.0.0.1:`,
		"28000": `does not let user "ali" in (open it yourself): correct the user in DATABASE_URL, or the server's pg_hba.conf`,
		"42501": `GRANT CONNECT ON DATABASE "cave" TO "ali"`,
		"53300": "has no connection left (open it yourself): end some, or raise its max_connections",
		"57P03": "does not take connections now (open it yourself): try again",
		"XX000": "refuses the connection: open it yourself (SQLSTATE XX000); check DATABASE_URL",
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			server := refusingServer(t, code)
			for _, line := range append(needing, "migrate up", "migrate down", "migrate status") {
				execute(t, "", []string{"DATABASE_URL=" + server}, strings.Fields(line)...).fails(t, exitFailure, want)
			}
		})
	}
}

// refusingServer answers every connection with an error, and returns its address.
func refusingServer(t *testing.T, code string) string {
	t.Helper()
	address := fakeServer(t, func(conn net.Conn) {
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err == nil {
			backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: "open it yourself"})
			_ = backend.Flush()
		}
	})
	return "postgres://ali:sesame@" + address + "/cave?sslmode=disable"
}

// fakeServer has every connection answered and closes it then, and returns its address.
func fakeServer(t *testing.T, answer func(conn net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			answer(conn)
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := "postgres://ali:sesame@" + listener.Addr().String() + "/cave?sslmode=disable"

	for _, line := range append(needing, "migrate up") {
		t.Run(line, func(t *testing.T) { // the system accepts connections that nobody reads
			o := execute(t, "", []string{"DATABASE_URL=" + address}, append(strings.Fields(line), "--connect-timeout", "200ms")...)
			o.fails(t, exitFailure, listener.Addr().String(), "DATABASE_URL")
		})
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	_ = listener.Close()
	_, port, _ := net.SplitHostPort(closed)

	for _, tt := range []struct{ name, address, want string }{
		{"closed port", "postgres://ali:sesame@" + closed + "/cave", "cannot reach PostgreSQL at " + closed + " (connect: connection refused): is it running, and is the address in DATABASE_URL right?"},
		{"two hosts", "postgres://ali:sesame@" + closed + "," + closed + "/cave", closed},
		{"name with two addresses", "postgres://ali:sesame@localhost:" + port + "/cave", "cannot reach PostgreSQL at localhost:" + port + " (connect: connection refused)"},
		{"no socket", "host=/nonexistent user=ali password=sesame", "cannot reach PostgreSQL at /nonexistent/.s.PGSQL.5432 (connect: no such file or directory)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, line := range append(needing, "migrate up", "migrate status") {
				execute(t, "", []string{"DATABASE_URL=" + tt.address}, strings.Fields(line)...).fails(t, exitFailure, tt.want)
			}
		})
	}
	t.Run("the listen address is named where it is the one", func(t *testing.T) {
		t.Parallel()
		outboxOn(t, pgtest.Database(t), "run", "--sink", "discard", "--listen-url", "postgres://ali:sesame@"+closed+"/cave").
			fails(t, exitFailure, "at "+closed, "is the address in --listen-url right?")
	})
}

func TestDatabaseThatWillNotDo(t *testing.T) {
	t.Parallel()

	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		address := withDatabase(t, pgtest.EmptyDatabase(t).URL, "atlantis")
		for _, line := range append(needing, "migrate up", "migrate status") {
			execute(t, "", []string{"OUTBOX_DATABASE_URL=" + address}, strings.Fields(line)...).
				fails(t, exitFailure, `database "atlantis" does not exist at `, "create it (createdb), or correct OUTBOX_DATABASE_URL")
		}
	})
	t.Run("not migrated", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		for _, line := range needing {
			outboxOn(t, db, strings.Fields(line)...).fails(t, exitFailure, "`outbox migrate up`")
		}
		outboxOn(t, db, "migrate", "down").fails(t, exitFailure, "nothing to take back")
	})
	t.Run("newer", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		execSQL(t, db, "CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER LANGUAGE sql AS 'SELECT 99'")
		for _, line := range []string{"run --sink discard", "migrate up", "migrate down"} {
			outboxOn(t, db, strings.Fields(line)...).fails(t, exitFailure, "99", "newer")
		}
		if o := outboxOn(t, db, "status").succeeds(t); !strings.Contains(o.stdout, fmt.Sprintf("version 99; this build knows %d: use a newer outbox", migrations.Latest)) {
			t.Errorf("status: %s", o.stdout)
		}
		if o := outboxOn(t, db, "migrate", "status"); o.code != exitFailure || !strings.Contains(o.stderr, "use a newer outbox") {
			t.Errorf("migrate status: %+v", o)
		}
	})
	t.Run("older", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		outboxOn(t, db, "migrate", "down").succeeds(t)
		outboxOn(t, db, "run", "--sink", "discard").fails(t, exitFailure, fmt.Sprintf("version %d", migrations.Latest-1), "`outbox migrate up`")
		if o := outboxOn(t, db, "status").succeeds(t); !strings.Contains(o.stdout, fmt.Sprintf("version %d; this build needs %d: run `outbox migrate up`", migrations.Latest-1, migrations.Latest)) {
			t.Errorf("status: %s", o.stdout)
		}
	})
	t.Run("without privileges", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		role := strings.ReplaceAll(db.Name, "outbox_test", "nobody")
		execSQL(t, db, "CREATE ROLE "+role)
		t.Cleanup(func() { execSQLDetached(t, db, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
		as := withParameter(t, db.URL, "role", role)
		for _, line := range append(needing, "migrate status", "migrate notify", "migrate notify off") {
			execute(t, "", []string{"DATABASE_URL=" + as}, strings.Fields(line)...).fails(t, exitFailure, "privilege")
		}
		execute(t, "", []string{"DATABASE_URL=" + as}, "migrate", "notify").fails(t, exitFailure, "lacks a privilege", "docs/roles.md")
		// It may see the schema, but not change it.
		execSQL(t, db, "GRANT USAGE ON SCHEMA events TO "+role)
		execute(t, "", []string{"DATABASE_URL=" + as}, "migrate", "notify", "off").
			fails(t, exitFailure, "the role lacks a privilege: migrate as the owner of schema events")
		// Nothing is to do there, and nothing is needed.
		execute(t, "", []string{"DATABASE_URL=" + withParameter(t, pgtest.EmptyDatabase(t).URL, "role", role)}, "migrate", "up").
			fails(t, exitFailure, "privilege")
	})
	t.Run("read-only", func(t *testing.T) {
		t.Parallel()
		as := withParameter(t, pgtest.Database(t).URL, "default_transaction_read_only", "on")
		execute(t, "", []string{"DATABASE_URL=" + as}, strings.Fields(needing[2])...).
			fails(t, exitFailure, "is a standby or read-only: connect to the primary", "target_session_attrs=read-write")
	})
	t.Run("pool settings in the address are no obstacle", func(t *testing.T) {
		t.Parallel()
		as := withParameter(t, pgtest.Database(t).URL, "pool_max_conns", "3")
		for _, line := range []string{"status", "migrate status", "migrate up", needing[2]} {
			execute(t, "", []string{"DATABASE_URL=" + as}, strings.Fields(line)...).succeeds(t)
		}
	})
}

func TestStandby(t *testing.T) {
	t.Parallel()
	server := pgtest.Cluster(t)
	address := server.URL("postgres")
	if err := outbox.Migrate(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	// Without a primary it is a standby all the same.
	if err := os.WriteFile(filepath.Join(server.DataDir(), "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context(), temppg.Fast); err != nil {
		t.Fatal(err)
	}
	environ := []string{"DATABASE_URL=" + address}

	execute(t, "", environ, "run", "--sink", "discard").fails(t, exitFailure, "the server is a standby", "connect to the primary")
	execute(t, "", environ, strings.Fields(needing[2])...).fails(t, exitFailure, "is a standby or read-only: connect to the primary")
	execute(t, "", environ, "migrate", "down").fails(t, exitFailure, "is a standby or read-only: connect to the primary")
	if o := execute(t, "", environ, "status").succeeds(t); !strings.Contains(o.stdout, "unknown: this server is a standby, ask the primary") {
		t.Errorf("status: %s", o.stdout)
	}
	for _, attributes := range []string{"read-write", "primary"} {
		as := withParameter(t, address, "target_session_attrs", attributes)
		execute(t, "", []string{"DATABASE_URL=" + as}, "status").fails(t, exitFailure, "no primary among", "only standbys")
	}
}

func withDatabase(t *testing.T, address, name string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func withParameter(t *testing.T, address, name, value string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}
