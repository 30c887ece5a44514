//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// isClosed tells whether stream cannot be written to, or was closed when the program started.
//
// Go's runtime opens /dev/null on a closed standard descriptor, for reading and writing, so that writes seem to succeed.
// A shell's >/dev/null is for writing alone. Some programs do start others with the former on purpose (daemon(3), Node.js,
// Python): that cannot be told apart.
func isClosed(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return true
	}
	switch flags & unix.O_ACCMODE {
	case unix.O_RDONLY:
		return true
	case unix.O_RDWR:
		return isNull(file)
	}
	return false
}

func isNull(file *os.File) bool {
	info, err := file.Stat()
	null, err2 := os.Stat(os.DevNull)
	return err == nil && err2 == nil && os.SameFile(info, null)
}
