package db_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/audit"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/temppg"
	"github.com/seed-9a365b49/outbox/migrations"
)

// documentedSQL returns the SQL of docs/roles.md by the headings that it stands under; a second block under one is "HEADING, 2".
func documentedSQL(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/roles.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		for i, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(body, -1) {
			if i > 0 {
				heading = fmt.Sprintf("%s, %d", heading, i+1)
			}
			blocks[heading] = block[1]
		}
	}
	return blocks
}

// as opens a session of a role.
func as(t *testing.T, server *temppg.Server, database, role, application string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(server.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	config.User = role
	config.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// denied fails unless each statement is refused for want of a privilege.
func denied(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := conn.Exec(t.Context(), statement)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "42501" {
			t.Errorf("%s: %v, want insufficient_privilege", statement, err)
		}
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	const database = "postgres"
	server := pgtest.Cluster(t) // a server of its own, for roles belong to all databases
	documented := documentedSQL(t)

	exec(t, as(t, server, database, "postgres", ""), documented["Roles"], "CREATE SCHEMA audit AUTHORIZATION outbox_owner")
	ofOwner := as(t, server, database, "outbox_owner", "")
	if err := migrations.Up(t.Context(), ofOwner.Config(), nil); err != nil {
		t.Fatalf("the owner cannot migrate: %v", err)
	}
	if _, err := audit.Create(t.Context(), ofOwner); err != nil {
		t.Fatalf("the owner cannot make the audit's table: %v", err)
	}
	exec(t, ofOwner, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA events FROM PUBLIC") // as some databases do
	exec(t, ofOwner, documented["Publisher"], documented["Publisher, 2"], documented["Worker"], documented["Operator"], documented["Audit"])
	exec(t, as(t, server, database, "postgres", ""), documented["Operator, 2"])
	publisher := as(t, server, database, "outbox_publisher", "")
	worker := as(t, server, database, "outbox_worker", pgnames.OwnerApplication)
	operator := as(t, server, database, "outbox_operator", "")
	publish := func() int64 {
		t.Helper()
		return value[int64](t, publisher, `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
			VALUES ('order', '00000000-0000-0000-0000-000000000001', 'Placed', '{}', now()) RETURNING id`)
	}

	t.Run("the publisher publishes, and can do nothing else", func(t *testing.T) {
		id := publish()
		exec(t, publisher, "SELECT meta.namespace, outbox.occurred_at FROM events.outbox AS outbox, events.outbox_meta AS meta WHERE outbox.id = 1")
		const insert = "INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, "
		denied(t, publisher,
			insert+"id) VALUES ('order', gen_random_uuid(), 'Placed', '{}', 4711)",
			insert+"published_at) VALUES ('order', gen_random_uuid(), 'Placed', '{}', now())",
			insert+"retry_count) VALUES ('order', gen_random_uuid(), 'Placed', '{}', 1)",
			insert+"occurred_at) VALUES ('order', gen_random_uuid(), 'Placed', '{}', now()) RETURNING payload",
			"SELECT payload FROM events.outbox",
			"SELECT count(published_at) FROM events.outbox",
			"UPDATE events.outbox SET payload = '{}'",
			"DELETE FROM events.outbox",
			"TRUNCATE events.outbox",
			"SELECT setval('events.outbox_id_seq', 1)",
			"SELECT * FROM events.outbox_delivery",
			"UPDATE events.outbox_meta SET namespace = gen_random_uuid()",
			"ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify",
			"SELECT events.outbox_set_notify('off')",
			"CREATE TABLE events.mine ()",
		)
		if n := value[int64](t, ofOwner, "SELECT count(*) FROM events.outbox WHERE id = $1 AND published_at IS NULL", id); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})

	queries := eventsdb.New(worker)
	ctx := t.Context()
	runtime := map[string]func() error{
		"SchemaThere": func() error { return ignored(queries.SchemaThere(ctx)) },
		"SchemaFacts": func() error { return ignored(queries.SchemaFacts(ctx)) },
		"NotifyMode":  func() error { return ignored(queries.NotifyMode(ctx)) },
		"CloseGate":   func() error { return ignored(queries.CloseGate(ctx)) },
		"OpenGate":    func() error { return ignored(queries.OpenGate(ctx, pgnames.GateLock)) },
		"Notify": func() error {
			return queries.Notify(ctx, eventsdb.NotifyParams{Channel: pgnames.ReleaseChannel})
		},
		"TryOwn":       func() error { return ignored(queries.TryOwn(ctx, pgnames.OwnerLock)) },
		"TuneSession":  func() error { return ignored(queries.TuneSession(ctx)) },
		"SessionState": func() error { return ignored(queries.SessionState(ctx, 1)) },
		"SessionHere":  func() error { return ignored(queries.SessionHere(ctx, eventsdb.SessionHereParams{Pid: 1})) },
		"BackendPID":   func() error { return ignored(queries.BackendPID(ctx)) },
		"FetchPage": func() error {
			return ignored(queries.FetchPage(ctx, eventsdb.FetchPageParams{PageSize: 10, HoldBack: true}))
		},
		"FetchByID": func() error {
			return ignored(queries.FetchByID(ctx, eventsdb.FetchByIDParams{Ids: []int64{1}, HoldBack: true}))
		},
		"ReloadLanes": func() error {
			return ignored(queries.ReloadLanes(ctx, eventsdb.ReloadLanesParams{
				HoldBack: true, PerLane: 1, AggregateTypes: []string{"order"}, AggregateIds: []uuid.UUID{{}}, FromIds: []int64{1},
			}))
		},
		"FetchDue": func() error {
			return ignored(queries.FetchDue(ctx, eventsdb.FetchDueParams{
				AfterTime: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, PageSize: 1,
			}))
		},
		"SweepReach": func() error {
			return ignored(queries.SweepReach(ctx, eventsdb.SweepReachParams{UpTo: 10, Most: 1}))
		},
		"SweepSlice": func() error {
			return ignored(queries.SweepSlice(ctx, eventsdb.SweepSliceParams{UpTo: 10, HoldBack: true}))
		},
		"ReadSequence":          func() error { return ignored(queries.ReadSequence(ctx, sequence)) },
		"FetchNew":              func() error { return ignored(queries.FetchNew(ctx, eventsdb.FetchNewParams{PageSize: 10})) },
		"FetchUnpublishedBatch": func() error { return ignored(queries.FetchUnpublishedBatch(ctx, 50)) },
		"MarkPublished":         func() error { return queries.MarkPublished(ctx, publish()) },
		"MarkRetry":             func() error { return queries.MarkRetry(ctx, eventsdb.MarkRetryParams{ID: publish()}) },
		"MarkPublishedBatch": func() error {
			return queries.MarkPublishedBatch(ctx, eventsdb.MarkPublishedBatchParams{Ids: []int64{publish()}})
		},
		"MarkRetryBatch": func() error {
			return ignored(queries.MarkRetryBatch(ctx, eventsdb.MarkRetryBatchParams{
				Ids: []int64{publish()}, RetryCounts: []int32{0}, LastErrors: []string{"failed"}, DelaysUs: []int64{0},
			}))
		},
		"MarkDeadBatch": func() error {
			return queries.MarkDeadBatch(ctx, eventsdb.MarkDeadBatchParams{Ids: []int64{publish()}, RetryCounts: []int32{0}, LastErrors: []string{"failed"}})
		},
		"RecordDeliveries": func() error {
			record := eventsdb.RecordDeliveriesParams{Ids: []int64{publish()}, Subscribers: []string{"mail"}, Dead: []bool{false}}
			return errors.Join(queries.RecordDeliveries(ctx, record), queries.RecordDeliveries(ctx, record))
		},
	}
	t.Run("the worker runs each of its queries", func(t *testing.T) {
		for name, run := range runtime {
			if err := run(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	t.Run("a standby sees the owner's session as its own, and may end it", func(t *testing.T) {
		standby := eventsdb.New(as(t, server, database, "outbox_worker", pgnames.OwnerApplication))
		session := must(standby.OwnerSession(ctx, eventsdb.OwnerSessionParams{ApplicationPrefix: pgnames.OwnerApplication, LockKey: int64(pgnames.OwnerLock)}))(t)
		if session.Pid != int32(worker.PgConn().PID()) || !session.Ours {
			t.Errorf("%+v, want pid %d, ours", session, worker.PgConn().PID())
		}
		victim := as(t, server, database, "outbox_worker", "")
		if ended := must(standby.TerminateSession(ctx, int32(victim.PgConn().PID())))(t); !ended {
			t.Error("the session was not ended")
		}
		if released := must(queries.ReleaseOwnership(ctx, pgnames.OwnerLock))(t); !released {
			t.Error("the ownership was not released")
		}
	})

	t.Run("the worker can do nothing else", func(t *testing.T) {
		denied(t, worker,
			"INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', gen_random_uuid(), 'Placed', '{}')",
			"UPDATE events.outbox SET payload = '{}'",
			"UPDATE events.outbox SET id = 4711",
			"DELETE FROM events.outbox",
			"DELETE FROM events.outbox_delivery",
			"SELECT nextval('events.outbox_id_seq')",
			"SELECT * FROM "+migrations.Table,
			"ALTER TABLE events.outbox DISABLE TRIGGER outbox_notify",
			"SELECT events.outbox_set_notify('off')",
		)
	})

	t.Run("the worker is told which privilege it lacks, as the end of a GRANT", func(t *testing.T) {
		if missing := must(queries.MissingPrivileges(ctx, false))(t); len(missing) > 0 {
			t.Fatalf("missing: %q", missing)
		}
		equal(t, "to archive as well", must(queries.MissingPrivileges(ctx, true))(t), []string{"DELETE ON events.outbox"})
		for revoke, want := range map[string]string{
			"SELECT ON events.outbox":                 "SELECT ON events.outbox",
			"UPDATE (next_retry_at) ON events.outbox": "UPDATE ON events.outbox",
			"SELECT ON events.outbox_delivery":        "SELECT ON events.outbox_delivery",
			"INSERT ON events.outbox_delivery":        "INSERT ON events.outbox_delivery",
			"UPDATE ON events.outbox_delivery":        "UPDATE ON events.outbox_delivery",
			"SELECT ON SEQUENCE events.outbox_id_seq": "SELECT ON SEQUENCE events.outbox_id_seq",
		} {
			exec(t, ofOwner, "REVOKE "+revoke+" FROM outbox_worker")
			missing := must(queries.MissingPrivileges(ctx, false))(t)
			equal(t, "without "+revoke, missing, []string{want})
			for _, privilege := range missing {
				exec(t, ofOwner, "GRANT "+privilege+" TO outbox_worker")
			}
			equal(t, "granted again", must(queries.MissingPrivileges(ctx, false))(t), nil)
		}
	})

	t.Run("the operator archives, redrives and discards, and can do nothing else", func(t *testing.T) {
		id := publish()
		if err := queries.RecordDeliveries(ctx, eventsdb.RecordDeliveriesParams{Ids: []int64{id}, Subscribers: []string{"mail"}, Dead: []bool{false}}); err != nil {
			t.Fatal(err)
		}
		exec(t, ofOwner, fmt.Sprintf("UPDATE events.outbox SET retry_count = 10, next_retry_at = 'infinity' WHERE id IN (%d, %d)", id, publish()))
		found := func() []int64 {
			return must(admin.IDs(ctx, operator, admin.Filter{State: admin.Dead, NewerThan: time.Hour}))(t)
		}
		if _, err := admin.Show(ctx, operator, id); err != nil {
			t.Error(err)
		}
		if done, err := admin.Redrive(ctx, operator, []int64{id}); err != nil || done.Events != 1 {
			t.Errorf("redriven: %+v, %v", done, err)
		}
		if n, err := admin.DiscardAny(ctx, operator, found(), admin.KeepLines(io.Discard)); err != nil || n == 0 {
			t.Errorf("discarded: %d, %v", n, err)
		}
		exec(t, ofOwner, fmt.Sprintf("UPDATE events.outbox SET retry_count = 10, next_retry_at = 'infinity' WHERE id = %d", publish()))
		if n, err := admin.DiscardAny(ctx, operator, found(), admin.KeepTable(pgx.Identifier{"ops", "discarded"})); err != nil || n == 0 {
			t.Errorf("discarded into a table: %d, %v", n, err)
		}
		exec(t, ofOwner, `INSERT INTO events.outbox OVERRIDING SYSTEM VALUE
			SELECT (jsonb_populate_record(NULL::events.outbox, event)).* FROM ops.discarded ORDER BY kept_at DESC LIMIT 1`)
		if _, err := migrations.Status(ctx, operator.Config()); err != nil {
			t.Error(err)
		}
		if n := value[int](t, operator, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'outbox_worker' AND query LIKE '%outbox%'"); n == 0 {
			t.Error("the operator does not see what the worker does")
		}
		hanging := as(t, server, database, "outbox_publisher", "")
		if !value[bool](t, operator, fmt.Sprintf("SELECT pg_terminate_backend(%d)", hanging.PgConn().PID())) {
			t.Error("the operator cannot end a session")
		}
		if n := must(eventsdb.New(operator).ArchiveOldOutboxEvents(ctx, 0))(t); n == 0 {
			t.Error("archived nothing")
		}
		exec(t, operator, "DELETE FROM events.outbox")
		if n := value[int](t, ofOwner, "SELECT count(*) FROM events.outbox_delivery"); n != 0 {
			t.Errorf("%d deliveries are left of discarded events", n)
		}
		denied(t, operator,
			"UPDATE events.outbox SET published_at = now()",
			"UPDATE events.outbox SET payload = '{}'",
			"INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', gen_random_uuid(), 'Placed', '{}')",
			"TRUNCATE events.outbox CASCADE",
		)
	})

	t.Run("the worker writes to the audit, the operator reads and writes, and copies stay", func(t *testing.T) {
		if err := audit.Check(ctx, worker, true, false); err != nil {
			t.Error(err)
		}
		if err := audit.Check(ctx, worker, true, true); !errors.Is(err, audit.ErrPrivileges) || !strings.HasSuffix(err.Error(), "GRANT SELECT ON audit.events TO outbox_worker (docs/roles.md)") {
			t.Error(err)
		}
		ids := []int64{publish()}
		if err := queries.MarkPublishedBatch(ctx, eventsdb.MarkPublishedBatchParams{Ids: ids}); err != nil {
			t.Fatal(err)
		}
		if err := pgx.BeginFunc(ctx, worker, func(tx pgx.Tx) error { return audit.Record(ctx, tx, ids) }); err != nil {
			t.Error(err)
		}
		if err := audit.Check(ctx, operator, true, true); err != nil {
			t.Error(err)
		}
		ids = append(ids, publish())
		if err := queries.MarkPublishedBatch(ctx, eventsdb.MarkPublishedBatchParams{Ids: ids}); err != nil {
			t.Fatal(err)
		}
		if n, err := audit.Backfill(ctx, operator, audit.BackfillOptions{}); err != nil || n != 1 {
			t.Errorf("copied %d, %v", n, err)
		}
		for _, conn := range []*pgx.Conn{worker, operator} {
			denied(t, conn, "UPDATE audit.events SET payload = '{}'", "DELETE FROM audit.events", "TRUNCATE audit.events")
		}
	})

	t.Run("the owner takes it all back, but for the schema that the administrator made", func(t *testing.T) {
		if err := migrations.DownAll(ctx, ofOwner.Config()); err != nil {
			t.Fatal(err)
		}
		if n := value[int](t, ofOwner, "SELECT count(*) FROM pg_class WHERE relnamespace = 'events'::regnamespace"); n != 0 {
			t.Errorf("%d relations are left", n)
		}
	})
}
