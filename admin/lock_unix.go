//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package admin

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile keeps out others who keep events in a file, until it is closed.
func lockFile(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("somebody else keeps events in it at the moment, try again")
	}
	return err
}
