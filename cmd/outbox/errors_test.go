package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/seed-9a365b49/outbox/migrations"
)

func TestPreparedStatementsThroughAPooler(t *testing.T) {
	t.Parallel()
	addr, err := parseAddress("postgres://ali:sesame@cave:6432/db", "DATABASE_URL")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []string{"42P05", "26000"} {
		cause := fmt.Errorf("read the schema: %w", &pgconn.PgError{Code: code, Message: `prepared statement "stmtcache_1"`})
		t.Run("of a command: the address can say so ("+code+")", func(t *testing.T) {
			t.Parallel()
			err := addr.explain(cause)
			for _, want := range []string{"cave:6432", "transaction pooler", "default_query_exec_mode=exec", "DATABASE_URL", code} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %s", err, want)
				}
			}
			if !errors.Is(err, cause) {
				t.Error("the cause is lost")
			}
		})
		t.Run("of a migration: it needs another address ("+code+")", func(t *testing.T) {
			t.Parallel()
			err := addr.explainMigration(cause)
			if !strings.Contains(err.Error(), "direct address") || strings.Contains(err.Error(), "default_query_exec_mode") {
				t.Errorf("%v", err)
			}
		})
		t.Run("in the log of a worker ("+code+")", func(t *testing.T) {
			t.Parallel()
			if text := logged(t, cause); !strings.Contains(text, "default_query_exec_mode=exec") || !strings.HasPrefix(text, "read the schema: ") {
				t.Errorf("%s", text)
			}
		})
	}
	t.Run("other errors of a migration stay what they were", func(t *testing.T) {
		t.Parallel()
		if err := addr.explainMigration(migrations.ErrForeignTool); err != migrations.ErrForeignTool {
			t.Errorf("%v", err)
		}
	})
}

// logged is the error field of a line that the program logs.
func logged(t *testing.T, err error) string {
	t.Helper()
	var line strings.Builder
	log := newLogger(&line, "info", "json")
	log.Warn().Err(err).Msg("settle_failing")
	var fields struct{ Error string }
	if err := json.Unmarshal([]byte(line.String()), &fields); err != nil {
		t.Fatal(err)
	}
	return fields.Error
}

// withoutTLS is a server that has no TLS, and fails every connection in another way.
func withoutTLS(t *testing.T) (address string) {
	t.Helper()
	return fakeServer(t, func(conn net.Conn) {
		message, err := pgproto3.NewBackend(conn, conn).ReceiveStartupMessage()
		if _, tls := message.(*pgproto3.SSLRequest); tls && err == nil {
			_, _ = conn.Write([]byte("N"))
		}
	})
}

func TestServerWithoutTLS(t *testing.T) {
	t.Parallel()
	const noise = "refused TLS"
	server := withoutTLS(t)
	connect := func(t *testing.T, mode string) error {
		t.Helper()
		_, err := pgconn.Connect(t.Context(), "postgres://ali:sesame@"+server+"/cave?sslmode="+mode)
		if err == nil {
			t.Fatal("connected")
		}
		return fmt.Errorf("connect: %w", err)
	}
	t.Run("that fails another way is reported for that", func(t *testing.T) {
		t.Parallel()
		o := execute(t, "", []string{"DATABASE_URL=postgres://ali:sesame@" + server + "/cave?sslmode=prefer"}, "status")
		o.fails(t, exitFailure, "cannot reach PostgreSQL at "+server)
		if strings.Contains(o.stderr, noise) {
			t.Errorf("%s", o.stderr)
		}
	})
	t.Run("and logged for that, in one line", func(t *testing.T) {
		t.Parallel()
		text := logged(t, connect(t, "prefer"))
		if strings.Contains(text, noise) || strings.Contains(text, "\n") || !strings.HasPrefix(text, "connect: no connection to "+server+" (") {
			t.Errorf("%q", text)
		}
	})
	t.Run("also where two addresses were tried", func(t *testing.T) {
		t.Parallel()
		text := logged(t, errors.Join(connect(t, "prefer"), connect(t, "disable")))
		if strings.Contains(text, noise) || strings.Contains(text, "\n") || strings.Count(text, "no connection to "+server+" (") != 2 {
			t.Errorf("%q", text)
		}
	})
	t.Run("is reported where TLS is required", func(t *testing.T) {
		t.Parallel()
		if text := logged(t, connect(t, "require")); !strings.Contains(text, noise) {
			t.Errorf("%q", text)
		}
		execute(t, "", []string{"DATABASE_URL=postgres://ali:sesame@" + server + "/cave?sslmode=require"}, "status").fails(t, exitFailure, noise)
	})
	t.Run("no error is logged as none", func(t *testing.T) {
		t.Parallel()
		var line strings.Builder
		log := newLogger(&line, "info", "json")
		log.Info().Err(nil).Msg("owner")
		if strings.Contains(line.String(), "error") || !strings.Contains(line.String(), `"owner"`) {
			t.Errorf("%s", line.String())
		}
	})
	t.Run("an error of anything else is logged as it is", func(t *testing.T) {
		t.Parallel()
		if text := logged(t, errBroken); text != "broken" {
			t.Errorf("%q", text)
		}
	})
}
