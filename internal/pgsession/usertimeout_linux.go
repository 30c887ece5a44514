package pgsession

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds how long sent data may stay unacknowledged (tcp(7), TCP_USER_TIMEOUT).
// Keepalive does not run while data is outstanding, and retransmission alone takes 15 minutes to give up.
func setUserTimeout(conn *net.TCPConn, d time.Duration) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return // closed already
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
