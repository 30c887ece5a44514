package temppg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// cache is a folder for downloads that the server's user can read.
type cache struct{ dir string }

// openCache makes the first of the host's cache folders that can be made. A folder that
// another user made is refused: what it holds would be run.
func (h *host) openCache() (cache, error) {
	var errs []error
	for _, dir := range h.cacheFolders {
		err := makeReadable(dir)
		if err == nil {
			return cache{dir}, nil
		}
		errs = append(errs, err)
	}
	return cache{}, fmt.Errorf("no cache folder: %w", errors.Join(errs...))
}

func makeReadable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || !ownedByMe(info) {
		return fmt.Errorf("%s: not a folder of this user", dir)
	}
	return os.Chmod(dir, 0o755) // whatever the umask says
}

// lock keeps other processes from installing at the same time.
func (c cache) lock(ctx context.Context) (release func(), err error) {
	return lockFile(ctx, filepath.Join(c.dir, "lock"))
}

const unfinished = "unfinished-"

// scratch makes a folder for an installation in progress, on the same file system as its
// final place, and removes those that killed processes left. Call it with the lock held.
func (c cache) scratch() (string, error) {
	old, err := filepath.Glob(filepath.Join(c.dir, unfinished+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(c.dir, unfinished)
}

// shareTree lets every user read what is below dir, and run what its owner can run.
func shareTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
