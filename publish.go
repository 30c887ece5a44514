package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/spans"
)

// These statements are constants, not sqlc queries, because sqlc's code is bound to one driver and
// these must run on whatever holds the caller's transaction. All parameters are text, cast here: any
// other Go type is sent differently by lib/pq, by pgx, and by pgx in its exec and simple_protocol modes
// ([]byte into jsonb fails there). They need no more than the publisher's privileges.
const (
	insertSQL = `
INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
VALUES ($1::text, $2::text::uuid, $3::text, $4::text::jsonb, COALESCE($5::text::timestamptz, now()))
RETURNING id`

	// The ids are drawn after the sort, so they rise with position, and come back in that order
	// (TestPublishBatch/ids_follow_the_order_of_the_messages).
	insertBatchSQL = `
WITH inserted AS (
    INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
    SELECT m.aggregate_type, m.aggregate_id::uuid, m.event_type, m.payload::jsonb, COALESCE(m.occurred_at::timestamptz, now())
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
        WITH ORDINALITY AS m (aggregate_type, aggregate_id, event_type, payload, occurred_at, position)
    ORDER BY m.position
    RETURNING id
)
SELECT COALESCE(json_agg(id), '[]')::text FROM inserted`

	publicIDSQL = `
SELECT meta.namespace::text, outbox.occurred_at
FROM events.outbox AS outbox, events.outbox_meta AS meta
WHERE outbox.id = $1::bigint`
)

// Querier is where [Publish] writes: a pgx.Tx, a *pgx.Conn, a *pgxpool.Pool, or anything with
// their QueryRow.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// SQLQuerier is where [PublishSQL] writes: a *sql.Tx, *sql.DB or *sql.Conn, over pgx/v5/stdlib or lib/pq,
// or what a library makes of them:
//
//	gorm   outbox.PublishSQL(ctx, tx.Statement.ConnPool, m)   // tx is the *gorm.DB of db.Transaction
//	sqlx   outbox.PublishSQL(ctx, tx, m)                      // tx is a *sqlx.Tx
//	bun    outbox.PublishSQL(ctx, tx.Tx, m)                   // tx is a bun.Tx; its own methods take ? for $1
type SQLQuerier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Publish writes an event to the outbox in the transaction tx and returns its id. The event
// exists once tx commits, and never if it rolls back. With a pool or a connection outside a
// transaction it is committed at once.
//
// Events of one aggregate are handled in the order of their ids, which is that of the Publish
// calls, not of the commits. Where two transactions may write one aggregate at the same
// time, lock it (its row, SELECT … FOR UPDATE) before publishing.
//
// A message that the database could not take is rejected with an [InvalidMessageError] before
// anything is sent. An error of the database (errors.As with *pgconn.PgError) has
// aborted the transaction: roll it back.
//
// Where OpenTelemetry has a tracer provider, the call is a span ("publish <event type>", kind PRODUCER) and the event is stored
// with its context, so that its deliveries link to it (package tracing). The provider is that of the context's span, or the global one,
// or the one of tracing.ContextWithTracerProvider. Where there is none, the event is stored with the context of the span that
// ctx carries, if any.
//
// The role needs USAGE on schema events and on sequence events.outbox_id_seq, and on events.outbox INSERT
// (aggregate_type, aggregate_id, event_type, payload, occurred_at) and SELECT (id, occurred_at).
func Publish(ctx context.Context, tx Querier, m Message) (int64, error) {
	return publish(ctx, onPGX(tx), m)
}

// PublishSQL is [Publish] for database/sql. Errors of lib/pq are *pq.Error.
func PublishSQL(ctx context.Context, tx SQLQuerier, m Message) (int64, error) {
	return publish(ctx, onSQL(tx), m)
}

// PublishBatch writes events to the outbox in one round trip and returns their ids in the order
// of the messages, which is a rising one. It is all or nothing, outside a transaction too.
// If any message is invalid nothing is sent, and the [InvalidMessageError] names
// each one's position. No messages are no error.
//
// The batch travels as one statement: some thousand messages are good, a gigabyte is more than
// PostgreSQL takes.
func PublishBatch(ctx context.Context, tx Querier, messages []Message) ([]int64, error) {
	return publishBatch(ctx, onPGX(tx), messages)
}

// PublishBatchSQL is [PublishBatch] for database/sql.
func PublishBatchSQL(ctx context.Context, tx SQLQuerier, messages []Message) ([]int64, error) {
	return publishBatch(ctx, onSQL(tx), messages)
}

// LookupPublicID returns the public id (see [event.PublicID]) of the event with this id, also inside the
// transaction that published it: the id by which its receivers know it, and the
// causation_id of what it causes. An unknown id is an error for which errors.Is(err, pgx.ErrNoRows) and sql.ErrNoRows hold.
//
// Besides the publisher's privileges the role needs SELECT on events.outbox_meta.
func LookupPublicID(ctx context.Context, tx Querier, id int64) (uuid.UUID, error) {
	return lookupPublicID(ctx, onPGX(tx), id)
}

// LookupPublicIDSQL is [LookupPublicID] for database/sql.
func LookupPublicIDSQL(ctx context.Context, tx SQLQuerier, id int64) (uuid.UUID, error) {
	return lookupPublicID(ctx, onSQL(tx), id)
}

// queryRow runs a statement that returns one row, whichever the driver.
type queryRow func(ctx context.Context, sql string, args ...any) scanner

type scanner interface{ Scan(dest ...any) error }

func onPGX(tx Querier) queryRow {
	return func(ctx context.Context, sql string, args ...any) scanner { return tx.QueryRow(ctx, sql, args...) }
}

func onSQL(tx SQLQuerier) queryRow {
	return func(ctx context.Context, sql string, args ...any) scanner {
		return tx.QueryRowContext(ctx, sql, args...)
	}
}

func publish(ctx context.Context, query queryRow, m Message) (int64, error) {
	r, problems := m.row(ctx, -1)
	if problems != nil {
		return 0, &InvalidMessageError{Fields: problems}
	}
	rows := [1]row{r}
	ctx, span := startSending(ctx, rows[:], false)
	defer span.End()
	r = rows[0]
	var id int64
	err := query(ctx, insertSQL, r.aggregateType, r.aggregateID, r.eventType, r.payload(), r.occurredAt).Scan(&id)
	if err != nil {
		return 0, sendingFailed(span, explain("publish", publisherNeeds, err))
	}
	if span.IsRecording() {
		span.SetAttributes(spans.EventID.Int64(id))
	}
	return id, nil
}

func publishBatch(ctx context.Context, query queryRow, messages []Message) ([]int64, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	rows := make([]row, len(messages))
	var problems []FieldError
	for i, m := range messages {
		r, wrong := m.row(ctx, i)
		problems = append(problems, wrong...)
		rows[i] = r
	}
	if problems != nil {
		return nil, &InvalidMessageError{Fields: problems}
	}
	ctx, span := startSending(ctx, rows, true)
	defer span.End()
	ids, err := insertBatch(ctx, query, rows)
	if err != nil {
		return nil, sendingFailed(span, err)
	}
	return ids, nil
}

func insertBatch(ctx context.Context, query queryRow, rows []row) ([]int64, error) {
	var aggregateTypes, aggregateIDs, eventTypes, payloads, occurredAts textArray
	for i := range rows {
		r := &rows[i]
		payload := r.payload()
		aggregateTypes.add(&r.aggregateType)
		aggregateIDs.add(&r.aggregateID)
		eventTypes.add(&r.eventType)
		payloads.add(&payload)
		occurredAts.add(r.occurredAt)
	}
	var text string
	err := query(ctx, insertBatchSQL, aggregateTypes.String(), aggregateIDs.String(), eventTypes.String(),
		payloads.String(), occurredAts.String()).Scan(&text)
	if err != nil {
		return nil, explain("publish batch", publisherNeeds, err)
	}
	var ids []int64
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return nil, fmt.Errorf("publish batch: read ids: %w", err)
	}
	if len(ids) != len(rows) {
		return nil, fmt.Errorf("publish batch: %d of %d events were inserted: does a trigger on events.outbox skip rows?", len(ids), len(rows))
	}
	return ids, nil
}

func lookupPublicID(ctx context.Context, query queryRow, id int64) (uuid.UUID, error) {
	var namespace uuid.UUID
	var occurredAt time.Time
	if err := query(ctx, publicIDSQL, id).Scan(&namespace, &occurredAt); err != nil {
		return uuid.Nil, explain(fmt.Sprintf("look up the public id of event %d", id), lookupNeeds, err)
	}
	return event.PublicID(namespace, id, occurredAt), nil
}

const (
	publisherNeeds = "USAGE ON SCHEMA events, USAGE ON SEQUENCE events.outbox_id_seq, and ON events.outbox " +
		"INSERT (aggregate_type, aggregate_id, event_type, payload, occurred_at) and SELECT (id, occurred_at)"
	lookupNeeds = "USAGE ON SCHEMA events, SELECT (id, occurred_at) ON events.outbox and SELECT ON events.outbox_meta"
)

// explain wraps an error of the database, with what to do where a set-up step is missing.
func explain(what, needs string, err error) error {
	var state interface{ SQLState() string } // *pgconn.PgError and *pq.Error alike
	if errors.As(err, &state) {
		switch state.SQLState() {
		case "42P01", "3F000": // undefined_table, invalid_schema_name
			return fmt.Errorf("%s: the outbox is not in this database (run `outbox migrate up`): %w", what, err)
		case "42501": // insufficient_privilege
			return fmt.Errorf("%s: the role lacks a privilege (it needs %s): %w", what, needs, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// textArray builds the text form of a PostgreSQL text[]: database/sql has no arrays, and
// pgx and lib/pq differ in theirs.
type textArray struct{ text strings.Builder }

var arrayQuoter = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// add appends an element; nil is NULL.
func (a *textArray) add(element *string) {
	separator := ","
	if a.text.Len() == 0 {
		separator = "{"
	}
	a.text.WriteString(separator)
	if element == nil {
		a.text.WriteString("NULL")
		return
	}
	a.text.WriteByte('"')
	_, _ = arrayQuoter.WriteString(&a.text, *element) // a Builder never fails
	a.text.WriteByte('"')
}

// String returns the array. It needs at least one element.
func (a *textArray) String() string { return a.text.String() + "}" }
