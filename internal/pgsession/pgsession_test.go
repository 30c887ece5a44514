package pgsession

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/temppg"
)

func parse(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func connect(t *testing.T, cfg *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// show returns the value of a setting in the session, "" if the server does not have it.
func show(t *testing.T, conn *pgx.Conn, name string) string {
	t.Helper()
	var value string
	if err := conn.QueryRow(t.Context(), "SELECT coalesce(current_setting($1, true), '')", name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestConfigSettings(t *testing.T) {
	t.Parallel()

	t.Run("override what a database sets for ordinary clients", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		for _, s := range []string{"statement_timeout = '7s'", "idle_session_timeout = '7s'", "default_transaction_isolation = 'serializable'"} {
			if _, err := db.Connect(t).Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{db.Name}.Sanitize()+" SET "+s); err != nil {
				t.Fatal(err)
			}
		}
		if got := show(t, db.Connect(t), "statement_timeout"); got != "7s" {
			t.Fatalf("an ordinary session has %q", got)
		}
		conn := connect(t, Config(parse(t, db.URL), "owner"))
		for name, want := range map[string]string{
			"application_name":                 "outbox/owner",
			"client_connection_check_interval": "1s",
			"idle_session_timeout":             "0",
			"statement_timeout":                "0",
			"default_transaction_isolation":    "read committed",
		} {
			if got := show(t, conn, name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		if got := show(t, conn, "transaction_timeout"); got != "0" && got != "" {
			t.Errorf("transaction_timeout = %q", got)
		}
	})

	t.Run("reach the server's side of a TCP connection", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Cluster(t, func(o *temppg.Options) { o.ListenTCP = true })
		conn := connect(t, Config(parse(t, server.TCPURL("postgres")), "owner"))
		for name, want := range map[string]string{
			"tcp_keepalives_idle":     "5",
			"tcp_keepalives_interval": "2",
			"tcp_keepalives_count":    "3",
			"tcp_user_timeout":        "10000",
		} {
			if got := show(t, conn, name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
	})
}

func TestApply(t *testing.T) {
	t.Parallel()

	t.Run("goes without what the server does not have or does not take", func(t *testing.T) {
		t.Parallel()
		conn := pgtest.EmptyDatabase(t).Connect(t)
		err := apply(t.Context(), conn.PgConn(), []setting{
			{"no_such_setting", "1"},
			{"tcp_keepalives_count", "not a number"},
			{"statement_timeout", "7s"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := show(t, conn, "statement_timeout"); got != "7s" {
			t.Errorf("the setting after the bad ones is %q", got)
		}
	})

	t.Run("fails for any other error", func(t *testing.T) {
		t.Parallel()
		conn := pgtest.EmptyDatabase(t).Connect(t)
		err := apply(t.Context(), conn.PgConn(), []setting{{"data_directory", "/"}, {"statement_timeout", "7s"}})
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "55P02" {
			t.Errorf("error %v, want SQLSTATE 55P02", err)
		}
	})

	t.Run("sets nothing through a pooler, which announces a process id of its own", func(t *testing.T) {
		t.Parallel()
		direct, err := pgconn.Connect(t.Context(), pgtest.EmptyDatabase(t).URL)
		if err != nil {
			t.Fatal(err)
		}
		session, err := direct.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		session.PID = math.MaxUint32 - session.PID // PgBouncer uses all 32 bits
		pooled, err := pgconn.Construct(session)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pooled.Close(context.Background()) })
		if err := apply(t.Context(), pooled, []setting{{"statement_timeout", "7s"}}); err != nil {
			t.Fatal(err)
		}
		result := pooled.ExecParams(t.Context(), "SHOW statement_timeout", nil, nil, nil, nil).Read()
		if result.Err != nil || string(result.Rows[0][0]) != "0" {
			t.Errorf("statement_timeout = %q, error %v", result.Rows, result.Err)
		}
	})

	t.Run("ends with its context", func(t *testing.T) {
		t.Parallel()
		conn := pgtest.EmptyDatabase(t).Connect(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := apply(ctx, conn.PgConn(), settings); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

func TestConfigKeepsTheBase(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	base := parse(t, db.URL)
	base.RuntimeParams["search_path"] = "elsewhere"
	var called []string
	base.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		called = append(called, "AfterNetConnect")
		return conn, nil
	}
	base.AfterConnect = func(context.Context, *pgconn.PgConn) error {
		called = append(called, "AfterConnect")
		return nil
	}
	cfg := Config(base, "owner")
	if _, touched := base.RuntimeParams["application_name"]; touched {
		t.Error("base was changed")
	}
	conn := connect(t, cfg)
	if got := show(t, conn, "search_path"); got != "elsewhere" {
		t.Errorf("search_path = %q", got)
	}
	if got := strings.Join(called, " "); got != "AfterNetConnect AfterConnect" {
		t.Errorf("hooks of base called: %s", got)
	}
}

func TestApplicationName(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"":            "outbox/gate",
		"billing":     "outbox/gate billing",
		"outbox/gate": "outbox/gate",
		"outbox/pool": "outbox/gate",
	} {
		if got := applicationName("gate", given); got != want {
			t.Errorf("given %q: %q, want %q", given, got, want)
		}
	}
}
