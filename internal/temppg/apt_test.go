//go:build unix

package temppg

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAPT(t *testing.T) {
	t.Parallel()

	t.Run("installs the server without a cluster where npm is missing", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.apt("15", "15.18")
		m.finds(m.debian("15"), "15.18")
		want := []string{
			"update update noninteractive: create_main_cluster = false",
			"install postgresql noninteractive: create_main_cluster = false",
		}
		if calls := m.calls(); !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
		m.clusterConfIsEmpty()
		if len(m.progress) != 1 || !strings.Contains(m.progress[0], "apt-get") {
			t.Errorf("progress %q", m.progress)
		}
	})
	t.Run("installs where npm fails", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.link("broken", filepath.Join(m.bin, "npm"))
		m.apt("15", "15.18")
		m.finds(m.debian("15"), "15.18")
	})
	t.Run("is asked for the version that OUTBOX_PG_VERSION says", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.server(m.debian("15"), "15.18")
		m.apt("17", "17.2")
		m.env["OUTBOX_PG_VERSION"] = "17"
		m.finds(m.debian("17"), "17.2")
		if calls := m.calls(); len(calls) != 2 || !strings.HasPrefix(calls[1], "install postgresql-17 ") {
			t.Errorf("calls %q", calls)
		}
	})
	t.Run("that has only an old server does not help", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.apt("13", "13.20")
		m.fails("13.20 is older than 15")
	})
	t.Run("that fails is quoted, and the drop-in is gone", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.apt("15", "15.18")
		m.write(filepath.Join(m.bin, "fail"), "")
		m.fails("npm: not installed", "apt: apt-get: exit status 100: no such package")
		m.clusterConfIsEmpty()
	})
	t.Run("is left alone by users other than root", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.apt("15", "15.18")
		m.host.root = false
		m.fails("apt: only for root")
		if calls := m.calls(); calls != nil {
			t.Errorf("apt-get was called: %v", calls)
		}
	})
}

func (m *machine) clusterConfIsEmpty() {
	m.t.Helper()
	entries, err := os.ReadDir(m.clusterConf)
	if err != nil || len(entries) != 0 {
		m.t.Errorf("left in %s: %v, %v", m.clusterConf, entries, err)
	}
}
