package outbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/seed-9a365b49/outbox/internal/netcut"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// pooled returns the address of a database by way of a transaction pooler: it lets anybody in, announces a process
// of its own, and runs each transaction in whichever of its two sessions comes next.
func pooled(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sessions := make(chan *pgconn.HijackedConn, 2)
	for range cap(sessions) {
		conn, err := pgconn.Connect(t.Context(), db.URL)
		if err != nil {
			t.Fatal(err)
		}
		session, err := conn.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Conn.Close() })
		sessions <- session
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			running.Go(func() {
				defer client.Close()
				_ = serve(pgproto3.NewBackend(client, client), sessions) // ends when the client has gone
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	// The proxy closes the clients' connections when the test ends.
	return db.Through(t, netcut.New(t, "tcp", listener.Addr().String())) + "&sslmode=disable"
}

// serve is one client of the pooler.
func serve(client *pgproto3.Backend, sessions chan *pgconn.HijackedConn) error {
	if message, err := client.ReceiveStartupMessage(); err != nil {
		return err
	} else if _, ok := message.(*pgproto3.StartupMessage); !ok {
		return fmt.Errorf("%T instead of a startup", message)
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1<<32 - 1, SecretKey: []byte("none")})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := client.Flush(); err != nil {
		return err
	}
	for {
		if err := serveTransaction(client, sessions); err != nil {
			return err
		}
	}
}

func serveTransaction(client *pgproto3.Backend, sessions chan *pgconn.HijackedConn) error {
	message, err := client.Receive()
	if err != nil {
		return err
	}
	session := <-sessions
	defer func() { sessions <- session }()
	for ; err == nil; message, err = client.Receive() {
		if _, ok := message.(*pgproto3.Terminate); ok {
			return errors.New("the client said goodbye")
		}
		session.Frontend.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			if over, err := passAnswer(client, session.Frontend); over || err != nil {
				return err
			}
		}
	}
	return err
}

// passAnswer passes an answer on. It tells whether that was the end of a transaction.
func passAnswer(client *pgproto3.Backend, session *pgproto3.Frontend) (over bool, err error) {
	if err := session.Flush(); err != nil {
		return false, err
	}
	for {
		message, err := session.Receive()
		if err != nil {
			return false, err
		}
		client.Send(message)
		if ready, ok := message.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus == 'I', client.Flush()
		}
	}
}

// pgbouncer returns the address of a database by way of PgBouncer in transaction mode. The test is skipped where there
// is no PgBouncer.
func pgbouncer(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil { // not in everybody's PATH
			t.Skip("pgbouncer is not installed")
		}
	}
	dir, err := os.MkdirTemp("", "pgbouncer") // unlike t.TempDir, another user's to enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	server, err := pgconn.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	password := ""
	if server.Password != "" {
		password = " password=" + server.Password
	}
	config := filepath.Join(dir, "pgbouncer.ini")
	err = os.WriteFile(config, fmt.Appendf(nil, `[databases]
* = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr =
unix_socket_dir = %s
listen_port = 6432
auth_type = any
pool_mode = transaction
`, server.Host, server.Port, server.User, password, dir), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{config}
	if os.Geteuid() == 0 { // which PgBouncer refuses to run as
		args = append(args, "-u", giveAway(t, dir, config))
	}
	command := exec.Command(program, args...)
	command.Stderr = t.Output()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	pgtest.Eventually(t, func() error {
		conn, err := net.Dial("unix", filepath.Join(dir, ".s.PGSQL.6432"))
		if err != nil {
			return fmt.Errorf("pgbouncer does not answer: %w", err)
		}
		return conn.Close()
	})
	return fmt.Sprintf("host=%s port=6432 dbname=%s user=%s", dir, server.Database, server.User)
}

// giveAway makes a user without privileges the owner of files, and returns its name.
func giveAway(t *testing.T, files ...string) (name string) {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(found.Uid)
		gid, gidErr := strconv.Atoi(found.Gid)
		err = errors.Join(uidErr, gidErr)
		for _, file := range files {
			err = errors.Join(err, os.Chown(file, uid, gid))
		}
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	t.Skip("no unprivileged user to run pgbouncer as")
	return ""
}
