//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package temppg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// supported is nil where temporary servers can run.
var supported error

// terminate asks a process to end.
const terminate = syscall.SIGTERM

// lockPoll is how often a lock held by another process is tried.
const lockPoll = 100 * time.Millisecond

// ownSession starts a process outside this process's session and group, as the account if
// there is one.
func ownSession(as *account) *syscall.SysProcAttr {
	attr := asAccount(as)
	attr.Setsid = true
	return attr
}

// asAccount starts a process as the account; nil means as the current user.
func asAccount(as *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid}
	}
	return attr
}

// ownedByMe tells whether the current user owns the file, so that nobody else could have
// put it there.
func ownedByMe(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// lockFile waits for the exclusive lock on a file, which the kernel releases if this
// process dies. The returned function releases it.
func lockFile(ctx context.Context, path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}
