package pgsession

import (
	"crypto/tls"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWatchPeer(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"plain TCP":    func(c net.Conn) net.Conn { return c },
		"TLS over TCP": func(c net.Conn) net.Conn { return tls.Client(c, &tls.Config{ServerName: "db"}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()

			watchPeer(wrap(conn))

			for _, o := range []struct {
				name          string
				level, option int
				want          int
			}{
				{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
				{"TCP_KEEPIDLE (s)", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 5},
				{"TCP_KEEPINTVL (s)", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 2},
				{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
				{"TCP_USER_TIMEOUT (ms)", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000},
			} {
				if got := socketOption(t, conn, o.level, o.option); got != o.want {
					t.Errorf("%s = %d, want %d", o.name, got, o.want)
				}
			}
		})
	}

	t.Run("a pipe needs nothing", func(t *testing.T) {
		t.Parallel()
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		watchPeer(a) // must not panic
	})
}

func socketOption(t *testing.T, conn net.Conn, level, option int) (value int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got error
	if err := raw.Control(func(fd uintptr) { value, got = unix.GetsockoptInt(int(fd), level, option) }); err != nil {
		t.Fatal(err)
	}
	if got != nil {
		t.Fatal(got)
	}
	return value
}
