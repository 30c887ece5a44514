//go:build unix

package temppg

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// machine is a host of temporary folders and fake programs: links into testdata, since a
// program that a parallel test has just written may be busy when it is run.
type machine struct {
	*host
	t    *testing.T
	bin  string // the only folder on its PATH
	root string // for installations
	env  map[string]string

	mu       sync.Mutex
	progress []string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, bin: t.TempDir(), root: t.TempDir(), env: map[string]string{}}
	m.host = &host{
		os: "linux", arch: "amd64",
		getenv:         func(name string) string { return m.env[name] },
		lookPath:       func(name string) (string, error) { return exec.LookPath(filepath.Join(m.bin, name)) },
		run:            run,
		installFolders: []string{filepath.Join(m.root, "usr/lib/postgresql/*/bin")},
		cacheFolders:   []string{filepath.Join(t.TempDir(), "outbox")},
		clusterConf:    filepath.Join(m.bin, "createcluster.d"),
	}
	m.host.progress = func(line string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.progress = append(m.progress, line)
	}
	return m
}

func (m *machine) link(fake, path string) {
	m.t.Helper()
	target, err := filepath.Abs(filepath.Join("testdata", fake))
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// server puts an installation into a folder.
func (m *machine) server(dir, version string) string {
	m.t.Helper()
	m.link("postgres", filepath.Join(dir, "postgres"))
	m.link("postgres", filepath.Join(dir, "initdb"))
	m.write(filepath.Join(dir, "version"), version)
	return dir
}

// debian is where Debian's package of a major version would be.
func (m *machine) debian(major string) string {
	return filepath.Join(m.root, "usr/lib/postgresql", major, "bin")
}

// npm puts an npm with these versions to offer on the PATH.
func (m *machine) npm(versions string) {
	m.t.Helper()
	m.link("npm", filepath.Join(m.bin, "npm"))
	m.write(filepath.Join(m.bin, "versions"), versions)
	m.write(filepath.Join(m.bin, "links"), `[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so.5"}]`)
}

// apt makes the user root on a machine whose apt-get has one server package.
func (m *machine) apt(major, version string) {
	m.t.Helper()
	m.host.root = true
	m.link("apt-get", filepath.Join(m.bin, "apt-get"))
	m.write(filepath.Join(m.bin, "installs"), m.debian(major)+" "+version+"\n")
}

// calls returns what the fake npm or apt-get was called for.
func (m *machine) calls() []string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.bin, "calls"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (m *machine) finds(dir, version string) {
	m.t.Helper()
	b, err := m.find(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	if b.dir != dir || b.version != version {
		m.t.Errorf("found %s in %s, want %s in %s", b.version, b.dir, version, dir)
	}
}

// fails checks that nothing is found and that the error says all of this.
func (m *machine) fails(says ...string) {
	m.t.Helper()
	b, err := m.find(m.t.Context())
	if err == nil {
		m.t.Fatalf("found %+v, want an error", b)
	}
	for _, want := range says {
		if !strings.Contains(err.Error(), want) {
			m.t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestAskedFolder(t *testing.T) {
	t.Parallel()

	t.Run("wins over a newer installation", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.debian("18"), "18.1")
		m.env["OUTBOX_PG_BINDIR"] = m.server(filepath.Join(m.root, "mine"), "16.2")
		m.finds(filepath.Join(m.root, "mine"), "16.2")
	})
	t.Run("without the programs is an error, even if others are installed", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.debian("18"), "18.1")
		m.env["OUTBOX_PG_BINDIR"] = m.bin
		m.fails("OUTBOX_PG_BINDIR", m.bin, "no initdb and postgres")
	})
	t.Run("of another version than the asked one is an error", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.env["OUTBOX_PG_BINDIR"] = m.server(m.debian("16"), "16.2")
		m.env["OUTBOX_PG_VERSION"] = "18"
		m.fails("OUTBOX_PG_BINDIR", "16.2 is not 18")
	})
}

func TestInstalled(t *testing.T) {
	t.Parallel()

	t.Run("where pg_config says", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		dir := m.server(filepath.Join(m.root, "opt/pg"), "17.4")
		m.link("pg_config", filepath.Join(m.bin, "pg_config"))
		m.write(filepath.Join(m.bin, "bindir"), dir+"\n")
		m.finds(dir, "17.4")
	})
	t.Run("on the PATH", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.bin, "16.9 (Fedora)")
		m.finds(m.bin, "16.9")
	})
	t.Run("on the PATH as a link to the folder that has initdb too", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		dir := filepath.Join(m.root, "cellar")
		for _, name := range []string{"postgres", "initdb"} {
			copyProgram(t, "testdata/postgres", filepath.Join(dir, name))
		}
		m.write(filepath.Join(dir, "version"), "16.9")
		if err := os.Symlink(filepath.Join(dir, "postgres"), filepath.Join(m.bin, "postgres")); err != nil {
			t.Fatal(err)
		}
		dirs := m.installFoldersHere(t.Context())
		if len(dirs) != 2 || !samePath(dirs[1], dir) {
			t.Errorf("folders to look at: %v, want %s among them", dirs, dir)
		}
	})
	t.Run("in the usual folders", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.finds(m.server(m.debian("15"), "15.18 (Debian 15.18-0+deb12u1)"), "15.18")
	})
	t.Run("the newest, wherever it is", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.bin, "16.1")
		m.server(m.debian("15"), "15.18")
		m.server(m.debian("17"), "17.10")
		m.server(m.debian("9"), "17.9")
		m.finds(m.debian("17"), "17.10")
	})
	t.Run("only folders with both programs count", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.link("postgres", filepath.Join(m.debian("18"), "postgres"))
		m.link("postgres", filepath.Join(m.debian("17"), "initdb"))
		m.finds(m.server(m.debian("16"), "16.1"), "16.1")
	})
	t.Run("the asked version, not the newest", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.debian("18"), "18.1")
		m.server(m.debian("16"), "16.1")
		m.env["OUTBOX_PG_VERSION"] = "16"
		m.finds(m.debian("16"), "16.1")
	})
	t.Run("a version that is too old does not count", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.debian("14"), "14.22")
		m.fails(m.debian("14"), "14.22 is older than 15")
	})
	t.Run("a program that does not run here does not count", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.link("broken", filepath.Join(m.debian("18"), "postgres"))
		m.link("broken", filepath.Join(m.debian("18"), "initdb"))
		m.fails(m.debian("18"), "a library is missing")
	})
	t.Run("a program that the server's user cannot reach does not count", func(t *testing.T) {
		t.Parallel()
		as, err := serverAccount()
		if err != nil {
			t.Fatal(err)
		}
		if as == nil {
			t.Skip("only root runs the server as another user")
		}
		m := newMachine(t) // t.TempDir is the current user's alone
		m.account = as
		m.server(m.debian("18"), "18.1")
		m.fails(m.debian("18"), "permission denied")
	})
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestUsualFolders(t *testing.T) {
	t.Parallel()

	for _, dir := range []string{
		"/usr/lib/postgresql/15/bin",                          // Debian
		"/usr/pgsql-16/bin",                                   // RHEL
		"/usr/libexec/postgresql17",                           // Alpine
		"/opt/homebrew/opt/postgresql@18/bin",                 // Homebrew on Apple silicon
		"/usr/local/opt/postgresql@14/bin",                    // Homebrew on Intel
		"/Applications/Postgres.app/Contents/Versions/18/bin", // Postgres.app
	} {
		known := false
		for _, pattern := range installFolders {
			matches, err := filepath.Match(pattern, dir)
			if err != nil {
				t.Fatal(err)
			}
			known = known || matches
		}
		if !known {
			t.Errorf("%s is not looked at", dir)
		}
	}
}

func TestAskedVersion(t *testing.T) {
	t.Parallel()

	for _, bad := range []string{"eighteen", "14", "-1", "18.1"} {
		m := newMachine(t)
		m.env["OUTBOX_PG_VERSION"] = bad
		m.fails("OUTBOX_PG_VERSION", bad)
	}
}

func TestNothingFound(t *testing.T) {
	t.Parallel()

	t.Run("says what to install and what was tried", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.fails("PostgreSQL 15 or newer", "apt-get install postgresql", "dnf install postgresql-server", "npm", "OUTBOX_PG_BINDIR",
			"installed: no usable folder", "npm: not installed", "apt: only for root")
	})
	t.Run("on macOS names Homebrew", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.os = "darwin"
		m.env["OUTBOX_PG_VERSION"] = "17"
		m.fails("PostgreSQL 17 (brew install postgresql@17)")
	})
	t.Run("a cancelled search tries nothing more", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.npm(`["18.4.0-beta.17"]`)
		m.apt("15", "15.18")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.find(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
		if calls := m.calls(); calls != nil {
			t.Errorf("calls after the end: %v", calls)
		}
	})
}

func TestNewer(t *testing.T) {
	t.Parallel()

	inOrder := []string{"", "9.6", "15.9", "15.18", "18.4.0-beta.9", "18.4.0-beta.17", "19beta1"}
	for i, a := range inOrder {
		for j, b := range inOrder {
			if got, want := newer(a, b), i > j; got != want {
				t.Errorf("newer(%q, %q) = %v", a, b, got)
			}
		}
	}
}
