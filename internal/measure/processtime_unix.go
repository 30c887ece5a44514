//go:build unix

package measure

import (
	"syscall"
	"time"
)

// processTime returns the CPU time that the process has taken, negative where the system does not tell: getrusage(2).
func processTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return -1
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
