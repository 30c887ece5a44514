//go:build unix

package temppg

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/lib/pq"
	"go.uber.org/goleak"
)

// patience is the deadline of every condition that a test waits for.
const patience = time.Minute

func TestMain(m *testing.M) {
	if how := os.Getenv(childVariable); how != "" {
		os.Exit(child(how))
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func setting(t *testing.T, conn *pgx.Conn, name string) (value string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// postmaster returns the process that serves a folder.
func postmaster(t *testing.T, dataDir string) int {
	t.Helper()
	pid, err := readPostmasterPID(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func readPostmasterPID(dataDir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(first)
}

// waitGone waits until neither the process nor the folder is there.
func waitGone(t *testing.T, pid int, folder string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		noProcess, noFolder := !running(pid), !exists(folder)
		if noProcess && noFolder {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("process %d gone: %v; folder %s gone: %v", pid, noProcess, folder, noFolder)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// running tells whether a process is there and more than a zombie that its parent has yet
// to collect.
func running(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func TestServer(t *testing.T) {
	t.Parallel()
	s := start(t, Options{MaxConnections: 33, Settings: map[string]string{"max_prepared_transactions": "5", "application_name": `it's "a" \ test`}})

	t.Run("is reached with pgx", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, s.URL("template1"))
		var database, user, addr string
		err := conn.QueryRow(t.Context(), "SELECT current_database(), current_user, coalesce(inet_server_addr()::text, 'socket')").Scan(&database, &user, &addr)
		if err != nil || database != "template1" || user != "postgres" || addr != "socket" {
			t.Errorf("database %s, user %s, address %s, %v", database, user, addr, err)
		}
	})
	t.Run("is reached with lib/pq", func(t *testing.T) {
		t.Parallel()
		db, err := sql.Open("postgres", s.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var dir string
		if err := db.QueryRowContext(t.Context(), "SHOW data_directory").Scan(&dir); err != nil || dir != s.DataDir() {
			t.Errorf("data directory %s, %v", dir, err)
		}
	})
	t.Run("is reached with psql", func(t *testing.T) {
		t.Parallel()
		psql, err := exec.LookPath("psql")
		if err != nil {
			t.Skip("no psql")
		}
		out, err := exec.CommandContext(t.Context(), psql, "-XAtc", "SHOW data_directory", s.URL("postgres")).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != s.DataDir() {
			t.Errorf("data directory %s, %v", out, err)
		}
	})
	t.Run("has the settings for tests and the given ones", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, s.URL("postgres"))
		for name, want := range map[string]string{
			"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "max_connections": "33", "listen_addresses": "",
			"max_prepared_transactions": "5", "application_name": `it's "a" \ test`, "TimeZone": "UTC", "server_encoding": "UTF8",
		} {
			if got := setting(t, conn, name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	})
	t.Run("obeys ALTER SYSTEM", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, s.URL("postgres"))
		for _, statement := range []string{"ALTER SYSTEM SET log_min_duration_statement = 1234", "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		for deadline := time.Now().Add(patience); setting(t, conn, "log_min_duration_statement") != "1234ms"; {
			if time.Now().After(deadline) {
				t.Fatal("the setting did not change")
			}
		}
	})
	t.Run("tells its version", func(t *testing.T) {
		t.Parallel()
		if got := setting(t, connect(t, s.URL("postgres")), "server_version"); !strings.HasPrefix(got, s.Version()) {
			t.Errorf("Version %q, the server says %q", s.Version(), got)
		}
		if !hasServer(s.BinDir()) {
			t.Errorf("BinDir %s", s.BinDir())
		}
	})
	t.Run("keeps others out and does not run as root", func(t *testing.T) {
		t.Parallel()
		info, err := os.Stat(s.SocketDir())
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o700 {
			t.Errorf("the folder's mode is %v", mode)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid == 0 {
			t.Error("the folder belongs to root")
		}
		if info, err := os.Stat(s.SocketPath()); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Errorf("socket: %v, %v", info, err)
		}
	})
}

func TestDurableServer(t *testing.T) {
	t.Parallel()
	conn := connect(t, start(t, Options{Durable: true}).URL("postgres"))
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		if got := setting(t, conn, name); got != "on" {
			t.Errorf("%s is %s", name, got)
		}
	}
}

func TestListenTCP(t *testing.T) {
	t.Parallel()

	t.Run("answers on a port of 127.0.0.1 and on the socket, and takes another port if the first was taken meanwhile", func(t *testing.T) {
		t.Parallel()
		taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		s, err := prepare(t.Context(), Options{ListenTCP: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Stop() }()
		tried := 0
		err = s.launch(t.Context(), func(ctx context.Context) (int, error) {
			if tried++; tried == 1 {
				return taken.Addr().(*net.TCPAddr).Port, nil
			}
			return freePort(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if tried != 2 {
			t.Errorf("%d ports were tried", tried)
		}
		for _, url := range []string{s.URL("postgres"), s.TCPURL("postgres")} {
			conn := connect(t, url)
			if port, dir := setting(t, conn, "port"), setting(t, conn, "data_directory"); port != strconv.Itoa(s.Port()) || dir != s.DataDir() {
				t.Errorf("at %s: port %s, data directory %s", url, port, dir)
			}
		}
	})
	t.Run("somebody else's server is not taken for ours", func(t *testing.T) {
		t.Parallel()
		other := start(t, Options{ListenTCP: true})
		err := checkServer(t.Context(), other.TCPURL("postgres"), t.TempDir())
		if err == nil || !strings.Contains(err.Error(), other.DataDir()) {
			t.Errorf("error %v, want one that names the other's folder", err)
		}
	})
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s := start(t, Options{}) // restarted again and again, so the subtests run one by one

	for _, mode := range []Mode{Fast, Immediate, Kill} {
		t.Run(string(mode)+" keeps the address and what was committed", func(t *testing.T) {
			conn := connect(t, s.URL("postgres"))
			if _, err := conn.Exec(t.Context(), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT $$"+string(mode)+"$$ AS mode"); err != nil {
				t.Fatal(err)
			}
			before := postmaster(t, s.DataDir())
			if err := s.Restart(t.Context(), mode); err != nil {
				t.Fatal(err)
			}
			if err := conn.Ping(t.Context()); err == nil {
				t.Error("the old session is alive")
			}
			if after := postmaster(t, s.DataDir()); after == before {
				t.Errorf("the server is still process %d", after)
			}
			var kept string
			err := connect(t, s.URL("postgres")).QueryRow(t.Context(), "SELECT mode FROM kept").Scan(&kept)
			if err != nil || kept != string(mode) {
				t.Errorf("read %q, %v", kept, err)
			}
		})
	}
	t.Run("between Halt and Resume nobody can connect", func(t *testing.T) {
		if err := s.Halt(t.Context(), Fast); err != nil {
			t.Fatal(err)
		}
		if conn, err := pgx.Connect(t.Context(), s.URL("postgres")); err == nil {
			_ = conn.Close(t.Context())
			t.Error("connected to a halted server")
		}
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		connect(t, s.URL("postgres"))
	})
	t.Run("an unknown mode is an error and changes nothing", func(t *testing.T) {
		conn := connect(t, s.URL("postgres"))
		if err := s.Restart(t.Context(), "smart"); err == nil {
			t.Error("no error")
		}
		if err := conn.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestStop(t *testing.T) {
	t.Parallel()

	stop := func(t *testing.T, s *Server) {
		t.Helper()
		pid := postmaster(t, s.DataDir())
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if running(pid) {
			t.Errorf("process %d is still there", pid)
		}
		if exists(s.SocketDir()) {
			t.Errorf("folder %s is still there", s.SocketDir())
		}
	}
	t.Run("ends the server and removes its folder, once", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		connect(t, s.URL("postgres"))
		stop(t, s)
		if err := s.Stop(); err != nil {
			t.Errorf("the second Stop: %v", err)
		}
		if err := s.Resume(t.Context()); err == nil {
			t.Error("resumed a stopped server")
		}
	})
	t.Run("works on a halted server", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		if err := s.Halt(t.Context(), Kill); err != nil {
			t.Fatal(err)
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if exists(s.SocketDir()) {
			t.Errorf("folder %s is still there", s.SocketDir())
		}
	})
	t.Run("ends a server that somebody else restarted", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		as, err := serverAccount()
		if err != nil {
			t.Fatal(err)
		}
		before := postmaster(t, s.DataDir())
		_, err = run(t.Context(), command{
			name: filepath.Join(s.BinDir(), "pg_ctl"), as: as,
			args: []string{"-D", s.DataDir(), "-l", filepath.Join(s.SocketDir(), logName), "-m", "immediate", "restart"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if postmaster(t, s.DataDir()) == before {
			t.Fatal("pg_ctl did not restart the server")
		}
		stop(t, s)
	})
	t.Run("does not wait for a stopped backend", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		backend := int(connect(t, s.URL("postgres")).PgConn().PID())
		if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		stop(t, s)
		if running(backend) {
			t.Errorf("backend %d is still there", backend)
		}
	})
}

func TestFailedStart(t *testing.T) {
	t.Parallel()

	// Each start gets a folder of its own, to see what it leaves there.
	folder := func(t *testing.T) string {
		t.Helper()
		dir, err := os.MkdirTemp("/tmp", "temppg-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 0 {
				t.Errorf("left in %s: %v, %v", dir, entries, err)
			}
			_ = os.RemoveAll(dir)
		})
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	fails := func(t *testing.T, ctx context.Context, o Options, want string) {
		t.Helper()
		s, err := Start(ctx, o)
		if err == nil {
			_ = s.Stop()
			t.Fatal("started")
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	t.Run("quotes the log", func(t *testing.T) {
		t.Parallel()
		fails(t, t.Context(), Options{Folder: folder(t), Settings: map[string]string{"work_mem": "plenty"}}, "work_mem")
	})
	t.Run("names a folder that cannot be used", func(t *testing.T) {
		t.Parallel()
		fails(t, t.Context(), Options{Folder: "/nonexistent"}, "/nonexistent")
	})
	t.Run("by cancellation leaves nothing", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for ctx.Err() == nil { // until initdb is at work
				if found, _ := filepath.Glob(filepath.Join(dir, "outbox-pg-*", "data", "base")); found != nil {
					cancel()
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
		fails(t, ctx, Options{Folder: dir}, context.Canceled.Error())
	})
}

func TestLog(t *testing.T) {
	t.Parallel()

	var log lockedBuffer
	s := start(t, Options{Log: &log})
	conn := connect(t, s.URL("postgres"))
	if _, err := conn.Exec(t.Context(), "DO $$ BEGIN RAISE LOG 'a word to the log'; END $$"); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil { // all of the log has been written when it returns
		t.Fatal(err)
	}
	if text := log.String(); !strings.Contains(text, "a word to the log") || !strings.Contains(text, "shut down") {
		t.Errorf("log:\n%s", text)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestServerEnv(t *testing.T) {
	t.Parallel()

	caller := map[string]string{"PATH": "/opt/bin", "PGPORT": "1", "PGOPTIONS": "-c x=y", "SECRET": "s", "LC_ALL": "ko_KR.UTF-8", "LD_LIBRARY_PATH": "/opt/lib"}
	got := strings.Join(serverEnv(func(name string) string { return caller[name] }), " ")
	if want := "LC_ALL=C TZ=UTC PATH=/opt/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/lib"; got != want {
		t.Errorf("environment %s, want %s", got, want)
	}
}
