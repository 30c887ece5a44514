package netcut_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-9a365b49/outbox/internal/netcut"
)

const (
	// patience is the deadline of what must happen.
	patience = 30 * time.Second
	// glance is how long a test looks for what must not happen.
	glance = 50 * time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back what it gets.
func echo(t *testing.T, network, address string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait() // every connection's end has got here
	})
	return listener.Addr().String()
}

func newProxy(t *testing.T) *netcut.Proxy {
	t.Helper()
	return netcut.New(t, "tcp", echo(t, "tcp", "127.0.0.1:0"))
}

func dial(t *testing.T, p *netcut.Proxy) *net.TCPConn {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// receives checks that exactly these bytes come next.
func receives(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("received %q, %v, want %q", got[:n], err, want)
	}
}

// sees nothing: neither bytes nor the end.
func seesNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(glance)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("received %d bytes, %v, want nothing", n, err)
	}
}

// seesEnd checks that the connection is closed, in order or not.
func seesEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 100)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("received %d bytes, %v, want the end", n, err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()

	t.Run("passes bytes both ways", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		one, two := dial(t, p), dial(t, p)
		send(t, one, "hello")
		send(t, two, "world")
		receives(t, two, "world")
		receives(t, one, "hello")
	})
	t.Run("passes all bytes on where it is throttled", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		p.Throttle(1 << 20)
		conn := dial(t, p)
		send(t, conn, strings.Repeat("0123456789", 5000))
		receives(t, conn, strings.Repeat("0123456789", 5000))
	})
	t.Run("passes the end on, after everything before it", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, newProxy(t))
		sent := make([]byte, 1<<20)
		_, _ = rand.Read(sent)
		go func() {
			_, _ = conn.Write(sent)
			_ = conn.CloseWrite()
		}()
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("received %d of %d bytes, %v", len(got), len(sent), err)
		}
	})
	t.Run("goes to Unix sockets too", func(t *testing.T) {
		t.Parallel()
		p := netcut.New(t, "unix", echo(t, "unix", filepath.Join(t.TempDir(), "s")))
		conn := dial(t, p)
		send(t, conn, "hello")
		receives(t, conn, "hello")
	})
	t.Run("closes the client if the target is not there", func(t *testing.T) {
		t.Parallel()
		p := netcut.New(t, "unix", filepath.Join(t.TempDir(), "nobody"))
		seesEnd(t, dial(t, p))
	})
}

func TestCut(t *testing.T) {
	t.Parallel()

	t.Run("ends connections", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		conn := dial(t, p)
		send(t, conn, "hello")
		receives(t, conn, "hello")
		p.Cut()
		seesEnd(t, conn)
	})
	t.Run("ends new connections until Heal", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		p.Cut()
		seesEnd(t, dial(t, p))
		p.Heal()
		conn := dial(t, p)
		send(t, conn, "hello")
		receives(t, conn, "hello")
	})
	t.Run("ends connections in a black hole", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		p.Blackhole()
		conn := dial(t, p)
		seesNothing(t, conn)
		p.Cut()
		seesEnd(t, conn)
	})
}

func TestBlackhole(t *testing.T) {
	t.Parallel()

	t.Run("holds bytes until Heal", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		conn := dial(t, p)
		send(t, conn, "before")
		receives(t, conn, "before")
		p.Blackhole()
		send(t, conn, "during")
		seesNothing(t, conn)
		p.Heal()
		receives(t, conn, "during")
	})
	t.Run("lets new connections wait", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		p.Blackhole()
		conn := dial(t, p)
		send(t, conn, "hello")
		seesNothing(t, conn)
		p.Heal()
		receives(t, conn, "hello")
	})
	t.Run("hides that the target has gone", func(t *testing.T) {
		t.Parallel()
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		p := netcut.New(t, "tcp", listener.Addr().String())
		client := dial(t, p)
		target, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		p.Blackhole()
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		seesNothing(t, client)
		p.Heal()
		seesEnd(t, client)
	})
	t.Run("does not keep the test from ending", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		send(t, dial(t, p), "hello")
		p.Blackhole()
		send(t, dial(t, p), "hello")
	})
}
