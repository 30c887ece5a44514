package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/admin"
)

// keeper is a flag that says where events are kept before they are deleted.
type keeper struct {
	value string
	table pgx.Identifier
}

func (k *keeper) String() string { return k.value }
func (k *keeper) Type() string   { return "place" }

func (k *keeper) Set(s string) error {
	name, table := strings.CutPrefix(s, "table:")
	if table {
		schema, name, found := strings.Cut(name, ".")
		if !found || schema == "" || name == "" || strings.Contains(name, ".") {
			return fmt.Errorf("%s is not table:SCHEMA.TABLE", quoteValue(s))
		}
		k.table = pgx.Identifier{schema, name}
	} else if s == "" {
		return errors.New("it is empty: give a file, or table:SCHEMA.TABLE")
	}
	k.value = s
	return nil
}

// open returns what keeps events there. close has to be called after it.
func (k *keeper) open(stdout io.Writer) (keep admin.Keep, close func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case k.table != nil:
		return admin.KeepTable(k.table), nothing, nil
	case k.value == "-":
		return admin.KeepLines(struct{ io.Writer }{stdout}), nothing, nil // without its Sync, which a pipe refuses
	}
	file, err := os.OpenFile(k.value, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err
		}
		return nil, nil, explain(err, "cannot write to %s (%v): nothing was changed", k.value, err)
	}
	if strings.HasSuffix(k.value, ".gz") {
		return admin.KeepGzip(file), file.Close, nil
	}
	return admin.KeepLines(file), file.Close, nil
}
