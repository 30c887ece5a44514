package temppg

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const defaultMaxConnections = 200

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// reserved are the settings on which finding the server depends.
var reserved = []string{"data_directory", "external_pid_file", "listen_addresses", "port", "unix_socket_directories"}

// conf returns the lines that are appended to the postgresql.conf of initdb, in which a
// later line wins. The port and the socket's folder are the watchdog's to add.
func (o Options) conf() (string, error) {
	var errs []error
	if !filepath.IsAbs(o.Folder) || strings.ContainsAny(o.Folder, "',\"\n") {
		errs = append(errs, fmt.Errorf("folder %q: want an absolute path without quotes and commas", o.Folder))
	}
	if o.MaxConnections < 0 {
		errs = append(errs, fmt.Errorf("max connections %d: want 0 or more", o.MaxConnections))
	}
	settings := o.defaults()
	for name, value := range o.Settings {
		if !settingName.MatchString(name) {
			errs = append(errs, fmt.Errorf("setting %q: not a name of a setting", name))
		}
		if slices.Contains(reserved, strings.ToLower(name)) {
			errs = append(errs, fmt.Errorf("setting %s: cannot be changed", name))
		}
		if strings.ContainsAny(value, "\n\r\x00") {
			errs = append(errs, fmt.Errorf("setting %s: the value %q is more than a line", name, value))
		}
		settings[strings.ToLower(name)] = value
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, quote(settings[name]))
	}
	return b.String(), nil
}

func (o Options) defaults() map[string]string {
	settings := map[string]string{
		"listen_addresses":  "",
		"max_connections":   strconv.Itoa(defaultMaxConnections),
		"shared_buffers":    "64MB",
		"max_wal_size":      "1GB",
		"logging_collector": "off",
	}
	if o.MaxConnections > 0 {
		settings["max_connections"] = strconv.Itoa(o.MaxConnections)
	}
	if o.ListenTCP {
		settings["listen_addresses"] = "127.0.0.1"
	}
	if !o.Durable {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	return settings
}

// quote escapes a value for single quotes in postgresql.conf, where a backslash escapes too.
func quote(value string) string {
	return strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(value)
}
