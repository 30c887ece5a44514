package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/migrations"
)

// version is set by a release build: -ldflags "-X main.version=v1.2.3".
var version string

// buildVersion is the version, else what the go command recorded about the source: its module version, or "devel" with
// the commit.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if version != "" || !ok {
		return cmp.Or(version, "devel")
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	v := "devel"
	if revision := settings["vcs.revision"]; revision != "" {
		v += "-" + revision[:min(len(revision), 12)]
	}
	if settings["vcs.modified"] == "true" {
		v += "-modified"
	}
	return v
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, and the schema version that it needs",
		Example: "  outbox version",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			return a.printf("outbox %s\ngo     %s %s/%s\nschema %d\n",
				buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, migrations.Latest)
		},
	}
}
