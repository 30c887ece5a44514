//go:build unix

package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/temppg"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const insertEvent = `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
	VALUES ('order', gen_random_uuid(), 'order.placed', '{}')`

func run(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (answer T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func TestDatabase(t *testing.T) {
	t.Parallel()

	t.Run("is migrated and nobody else's", func(t *testing.T) {
		t.Parallel()
		one, two := pgtest.Database(t), pgtest.Database(t)
		run(t, one, insertEvent)
		if n := ask[int](t, one.Pool, "SELECT count(*) FROM events.outbox"); n != 1 {
			t.Errorf("%d events in the first", n)
		}
		if n := ask[int](t, two.Pool, "SELECT count(*) FROM events.outbox"); n != 0 {
			t.Errorf("%d events in the second", n)
		}
		if name := ask[string](t, one.Pool, "SELECT current_database()"); name != one.Name || name == two.Name {
			t.Errorf("the databases %s and %s: the first is %s", one.Name, two.Name, name)
		}
	})
	t.Run("is dropped when its test ends, whatever was left in it", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Cluster(t, func(o *temppg.Options) { o.Settings = map[string]string{"max_prepared_transactions": "2"} })
		var left *pgx.Conn
		var name string
		t.Run("test", func(t *testing.T) {
			db := pgtest.DatabaseOn(t, server)
			name = db.Name
			run(t, db, "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'it''s left'")
			var err error
			if left, err = pgx.Connect(t.Context(), db.URL); err != nil {
				t.Fatal(err)
			}
		})
		defer left.Close(context.Background())
		if err := left.Ping(t.Context()); err == nil {
			t.Error("the session that was left open is alive")
		}
		admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close(context.Background())
		var exists bool
		if err := admin.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
			t.Errorf("database %s exists: %v, %v", name, exists, err)
		}
	})
}

func TestEmptyDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	if schemas := ask[int](t, db.Pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'events'"); schemas != 0 {
		t.Error("schema events is there")
	}
	if enc := ask[string](t, db.Pool, "SHOW server_encoding"); enc != "UTF8" {
		t.Errorf("encoding %s", enc)
	}
}

func TestConnect(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	one, two := db.Connect(t), db.Connect(t)
	if one.PgConn().PID() == two.PgConn().PID() {
		t.Error("two connections share a session")
	}
	if one.Config().Database != db.Name {
		t.Errorf("connected to %s", one.Config().Database)
	}
}

func TestThrough(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	proxy := db.Proxy(t)
	connect := func() (*pgx.Conn, error) { return pgx.Connect(t.Context(), db.Through(t, proxy)) }
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var name string
	if err := conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil || name != db.Name {
		t.Errorf("database %s, %v", name, err)
	}
	proxy.Cut()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the session survived the cut")
	}
	if conn, err := connect(); err == nil {
		_ = conn.Close(t.Context())
		t.Error("connected through a cut proxy")
	}
	proxy.Heal()
	again, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close(t.Context())
}

// childVariable makes TestChild, run alone in a process of its own, do what it names.
const childVariable = "PGTEST_TEST_CHILD"

func TestChild(t *testing.T) {
	switch os.Getenv(childVariable) {
	case "":
		t.Skip("for TestMainOf")
	case "pass":
		db := pgtest.Database(t)
		run(t, db, insertEvent)
		t.Log(db.URL)
	case "fail":
		t.Error(pgtest.EmptyDatabase(t).URL)
	case "panic":
		fmt.Println(pgtest.EmptyDatabase(t).URL)
		panic("on purpose")
	case "leak":
		go leftOver(make(chan struct{}))
	case "keep":
		if _, err := pgtest.EmptyDatabase(t).Pool.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func leftOver(never chan struct{}) { <-never }

// serverFolder finds the folder of a temporary server in a URL.
var serverFolder = regexp.MustCompile(`%2Ftmp%2Foutbox-pg-\w+`)

// waitGone waits until a server's folder, which goes last, is not there any more.
func waitGone(t *testing.T, escaped string) {
	t.Helper()
	folder, err := url.QueryUnescape(escaped)
	if err != nil || folder == "" {
		t.Fatalf("no folder in the output: %q, %v", escaped, err)
	}
	pgtest.Eventually(t, func() error {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is still there (%v)", folder, err)
		}
		return nil
	})
}

// runChild returns what the child printed, and its exit code.
func runChild(t *testing.T, what string, env ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(append(os.Environ(), "OUTBOX_TEST_DATABASE_URL=", childVariable+"="+what), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestMainOf(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		name, child string
		code        int
		says        string
		server      bool // the output names its folder
	}{
		{"a test that passes exits with 0 and leaves no server", "pass", 0, "PASS", true},
		{"a test that fails exits with 1 and leaves no server", "fail", 1, "--- FAIL: TestChild", true},
		{"a test that panics exits with 2 and leaves no server", "panic", 2, "panic: on purpose", true},
		{"a test that leaves a goroutine behind fails and names it", "leak", 1, "leftOver", false},
		{"a test that keeps a connection fails and says so", "keep", 1, "1 connections were not released", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out, code := runChild(t, tc.child)
			if code != tc.code || !strings.Contains(out, tc.says) {
				t.Errorf("exit code %d, want %d, and output with %q:\n%s", code, tc.code, tc.says, out)
			}
			if tc.server {
				waitGone(t, serverFolder.FindString(out))
			}
		})
	}
}

func TestGivenServer(t *testing.T) {
	t.Parallel()

	t.Run("is used and left as it was", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Cluster(t)
		admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close(context.Background())
		databases := func() (names string) {
			err := admin.QueryRow(t.Context(), "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database").Scan(&names)
			if err != nil {
				t.Fatal(err)
			}
			return names
		}
		before := databases()
		// Without usable programs, the child can have its databases only from the given server.
		out, code := runChild(t, "pass", "OUTBOX_TEST_DATABASE_URL="+server.URL("postgres"), "OUTBOX_PG_BINDIR=/nonexistent")
		if code != 0 {
			t.Errorf("exit code %d:\n%s", code, out)
		}
		if after := databases(); after != before {
			t.Errorf("databases before: %s, after: %s", before, after)
		}
	})
	t.Run("must be a URL", func(t *testing.T) {
		t.Parallel()
		out, code := runChild(t, "pass", "OUTBOX_TEST_DATABASE_URL=host=localhost dbname=postgres")
		if code != 1 || !strings.Contains(out, "OUTBOX_TEST_DATABASE_URL: want a URL") {
			t.Errorf("exit code %d:\n%s", code, out)
		}
	})
}
