package temppg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// fromAPT installs the distribution's server package, as root on Debian and its relatives.
// The package would create and start a cluster of its own, for which nobody asked here; a
// setting for the time of the installation keeps it from that.
func (h *host) fromAPT(ctx context.Context, major int) (b binaries, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("apt: %w", err)
		}
	}()
	if h.os != "linux" || !h.root {
		return binaries{}, errors.New("only for root on Linux")
	}
	apt, err := h.lookPath("apt-get")
	if err != nil {
		return binaries{}, errors.New("no apt-get here")
	}
	c, err := h.openCache()
	if err != nil {
		return binaries{}, err
	}
	release, err := c.lock(ctx)
	if err != nil {
		return binaries{}, err
	}
	defer release()
	if b, err := h.installed(ctx, major); err == nil { // by the process that held the lock
		return b, nil
	}
	if err := h.aptInstall(ctx, apt, major); err != nil {
		return binaries{}, err
	}
	return h.installed(ctx, major)
}

func (h *host) aptInstall(ctx context.Context, apt string, major int) (err error) {
	pkg := "postgresql"
	if major != 0 {
		pkg = fmt.Sprintf("postgresql-%d", major)
	}
	restore, err := h.withoutMainCluster()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()

	h.progress("installing the package " + pkg + " with apt-get")
	// dpkg may be busy with something else, such as unattended upgrades: wait for two minutes.
	for _, args := range [][]string{
		{"update"},
		{"install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", pkg},
	} {
		_, err := h.run(ctx, command{name: apt, args: args, env: []string{"DEBIAN_FRONTEND=noninteractive"}})
		if err != nil {
			return err
		}
	}
	return nil
}

// withoutMainCluster keeps Debian's packages from creating and starting the cluster
// "main"; restore takes that back.
func (h *host) withoutMainCluster() (restore func() error, err error) {
	if err := os.MkdirAll(h.clusterConf, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(h.clusterConf, "outbox-temporary.conf")
	if err := os.WriteFile(file, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.Remove(file) }, nil
}
