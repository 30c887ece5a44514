package db_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
)

// explainer is a session on which the generated code's queries are explained instead of answered. Each is prepared once
// and then executed as often as it is asked for, as pgx does it, so that PostgreSQL caches its plan in the same way.
type explainer struct {
	conn *pgx.Conn
	tune func(context.Context, *eventsdb.Queries) error // the settings of a transaction, nil for none
	last plan
}

// errExplained is what the generated code gets for an answer.
var errExplained = errors.New("explained")

// explain returns what PostgreSQL did for a query.
func (e *explainer) explain(t *testing.T, ask func(*eventsdb.Queries) error) plan {
	t.Helper()
	if err := ask(eventsdb.New(e)); !errors.Is(err, errExplained) {
		t.Fatalf("explain: %v", err)
	}
	return e.last
}

func (e *explainer) run(ctx context.Context, sql string, args []any) error {
	name := strings.Fields(sql)[2] // -- name: X
	if _, err := e.conn.Prepare(ctx, name, sql); err != nil {
		return err
	}
	literals := make([]string, len(args))
	for i, arg := range args {
		literals[i] = literal(arg)
	}
	tx, err := e.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if e.tune != nil {
		if err := e.tune(ctx, eventsdb.New(tx)); err != nil {
			return err
		}
	}
	var text []byte
	statement := fmt.Sprintf("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE %q (%s)", name, strings.Join(literals, ", "))
	if err := tx.QueryRow(ctx, statement, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		return err
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		return err
	}
	e.last = plan{plans[0].Plan}
	return errExplained
}

func (e *explainer) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, e.run(ctx, sql, args)
}

func (e *explainer) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return nil, e.run(ctx, sql, args)
}

func (e *explainer) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return explainedRow{e.run(ctx, sql, args)}
}

type explainedRow struct{ err error }

func (r explainedRow) Scan(...any) error { return r.err }

// literal writes an argument as EXECUTE takes it: quoted, so that the parameter gives it its type.
func literal(arg any) string {
	switch arg := arg.(type) {
	case pgtype.Timestamptz:
		if arg.InfinityModifier == pgtype.NegativeInfinity {
			return "'-infinity'"
		}
		return "'" + arg.Time.Format("2006-01-02 15:04:05.999999Z07:00") + "'"
	case []int64:
		return array(arg)
	case []int32:
		return array(arg)
	case []bool:
		return array(arg)
	case []string:
		return array(arg)
	case []uuid.UUID:
		return array(arg)
	case uuid.NullUUID:
		if !arg.Valid {
			return "NULL"
		}
		return "'" + arg.UUID.String() + "'"
	case *string:
		if arg == nil {
			return "NULL"
		}
		return "'" + *arg + "'"
	case *int64:
		if arg == nil {
			return "NULL"
		}
		return fmt.Sprint(*arg)
	}
	return fmt.Sprintf("'%v'", arg)
}

func array[T any](list []T) string {
	elements := make([]string, len(list))
	for i, v := range list {
		elements[i] = fmt.Sprint(v)
	}
	return "'{" + strings.Join(elements, ",") + "}'"
}

// plan is what EXPLAIN ANALYZE says of one execution.
type plan struct{ root node }

// String draws the tree, one node a line.
func (p plan) String() string {
	var text strings.Builder
	p.root.draw(&text, "  ")
	return text.String()
}

type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"` // a mean, from PostgreSQL 18 on with decimals
	Loops    int     `json:"Actual Loops"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []node
}

// indexes lists the indexes that were read, and "all of" a table that was read without one, sorted.
func (p plan) indexes() []string {
	var list []string
	p.root.walk(func(n node) {
		switch {
		case n.Index != "":
			list = append(list, n.Index)
		case n.Type == "Seq Scan":
			list = append(list, "all of "+n.Relation)
		}
	})
	slices.Sort(list)
	return slices.Compact(list)
}

// buffers counts the pages that were read to find rows: for an UPDATE or INSERT without those that it wrote to.
func (p plan) buffers() int {
	n := p.root
	if n.Type == "ModifyTable" {
		n = n.Plans[0]
	}
	return n.Hit + n.Read
}

func (n node) draw(text *strings.Builder, indent string) {
	fmt.Fprintf(text, "%s%s %s %s rows=%g loops=%d pages=%d\n", indent, n.Type, n.Relation, n.Index, n.Rows, n.Loops, n.Hit+n.Read)
	for _, child := range n.Plans {
		child.draw(text, indent+"  ")
	}
}

func (n node) walk(visit func(node)) {
	visit(n)
	for _, child := range n.Plans {
		child.walk(visit)
	}
}
