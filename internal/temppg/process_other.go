//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package temppg

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

var supported = fmt.Errorf("not supported on %s; give the URL of a running PostgreSQL instead", runtime.GOOS)

var terminate = os.Kill

func ownSession(*account) *syscall.SysProcAttr { return nil }

func asAccount(*account) *syscall.SysProcAttr { return nil }

func ownedByMe(os.FileInfo) bool { return false }

func lockFile(context.Context, string) (func(), error) { return nil, supported }
