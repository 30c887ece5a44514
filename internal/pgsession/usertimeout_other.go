//go:build !linux

package pgsession

import (
	"net"
	"time"
)

// setUserTimeout does nothing: the option is Linux's. Keepalive has to do.
func setUserTimeout(*net.TCPConn, time.Duration) {}
