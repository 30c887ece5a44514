package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

var fileEndings = []string{".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz"}

// longestName is how many bytes of a table's name PostgreSQL keeps.
const longestName = 63

func (k *keeper) Set(s string) error {
	name, table := strings.CutPrefix(s, "table:")
	if table {
		schema, name, found := strings.Cut(name, ".")
		if !found || schema == "" || name == "" || strings.Contains(name, ".") || max(len(schema), len(name)) > longestName {
			return fmt.Errorf("%s is not table:SCHEMA.TABLE, with names of up to %d bytes", quoteValue(s), longestName)
		}
		k.table = pgx.Identifier{schema, name}
	} else if s != "-" && !slices.ContainsFunc(fileEndings, func(end string) bool { return strings.HasSuffix(s, end) }) { // such as a table without table:
		return fmt.Errorf("%s is not FILE.ndjson, FILE.ndjson.gz, - or table:SCHEMA.TABLE", quoteValue(s))
	}
	k.value = s
	return nil
}

// open returns what keeps events there. close has to be called after it.
func (k *keeper) open(a *app) (keep admin.Keep, close func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case k.table != nil:
		return admin.KeepTable(k.table), nothing, nil
	case k.value == "-" && isClosed(a.stdout):
		return nil, nil, errors.New("standard output is closed: nothing would be kept")
	case k.value == "-":
		return admin.KeepLines(a.stdout), nothing, nil
	}
	file, err := admin.OpenFile(k.value)
	if err != nil {
		return nil, nil, k.unfit(err)
	}
	if n := file.Torn(); n > 0 {
		fmt.Fprintf(a.stderr, "outbox: %s ends in %d bytes of half a batch, as a run that was broken off leaves it, with its events not deleted: "+
			"they are moved to %[1]s.torn before anything is added\n", k.value, n)
	}
	return file.Keep, file.Close, nil
}

// openLater opens with the first events: so an archive finds out first that another one is at work, into the same file.
func (k *keeper) openLater(a *app) (admin.Keep, func() error) {
	var keep admin.Keep
	end := func() error { return nil }
	later := func(ctx context.Context, tx pgx.Tx, ids []int64) error {
		if keep == nil {
			opened, closeKeep, err := k.open(a)
			if err != nil {
				return err
			}
			keep, end = opened, closeKeep
		}
		return keep(ctx, tx, ids)
	}
	return later, func() error { return end() }
}

// try returns an error where nothing could be kept there, and leaves no trace.
func (k *keeper) try(ctx context.Context, a *app, conn *pgx.Conn) error {
	switch {
	case k.value == "":
		return nil
	case k.table == nil && k.value != "-":
		if err := admin.CheckFile(k.value); err != nil {
			return k.unfit(err)
		}
		return nil
	}
	keep, _, err := k.open(a)
	if err != nil {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	return errors.Join(keep(ctx, tx, nil), tx.Rollback(ctx))
}

func (k *keeper) unfit(err error) error {
	return explain(err, "cannot keep events in %s: %v", k.value, err)
}
