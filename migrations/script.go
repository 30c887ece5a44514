package migrations

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// SQL returns the whole schema as one script for people with another migration tool. It cannot
// run inside one transaction, since it builds indexes concurrently, and has to stop at the first error.
func SQL() (string, error) {
	steps, err := sources()
	if err != nil {
		return "", err
	}
	var script strings.Builder
	fmt.Fprintf(&script, `-- Schema of the outbox, version %d. Do not wrap it in a transaction: it creates indexes concurrently.
-- Stop at the first error: psql -v ON_ERROR_STOP=1 -f …

CREATE SCHEMA IF NOT EXISTS events;
`, Latest)
	for _, step := range steps {
		text, err := fs.ReadFile(files, step.Name)
		if err != nil {
			return "", err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		script.WriteString("\n-- " + step.Name + "\n" + plain(up))
	}
	return script.String(), nil
}

var (
	annotation = regexp.MustCompile(`(?m)^-- \+goose .*\n`)
	setLocal   = regexp.MustCompile(`(?m)^SET LOCAL lock_timeout`)
)

// plain turns the Up part of one file into plain SQL. SET LOCAL has no effect outside a transaction, and what SET leaves
// behind would cut short the next index.
func plain(up string) string {
	text := setLocal.ReplaceAllString(annotation.ReplaceAllString(up, ""), "SET lock_timeout")
	if text = strings.TrimSpace(text) + "\n"; strings.Contains(text, "\nSET lock_timeout") {
		text += "\nRESET lock_timeout;\n"
	}
	return text
}
