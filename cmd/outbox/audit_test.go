package main

import (
	"strings"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestAudit(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	ids := insert(t, db, 3)
	execSQL(t, db, "UPDATE events.outbox SET published_at = now() - interval '31 days' WHERE id = ANY ($1)", ids[:2])
	says := func(want string, args ...string) {
		t.Helper()
		if o := outboxOn(t, db, args...).succeeds(t); o.stdout != want {
			t.Errorf("%q says %q, want %q", args, o.stdout, want)
		}
	}

	for _, command := range []string{"audit backfill", "audit backfill --dry-run", "archive --require-audit", "run --sink discard --audit"} {
		outboxOn(t, db, strings.Fields(command)...).fails(t, exitFailure, "there is no table audit.events: run `outbox audit create`")
	}
	says("made audit.events\n", "audit", "create")
	says("audit.events is there already\n", "audit", "create")
	outboxOn(t, db, "archive", "--require-audit").fails(t, exitFailure, "2 events were not in audit.events and stay: run `outbox audit backfill`")
	says("2 events were published without a copy; nothing was copied\n", "audit", "backfill", "--dry-run")
	says("2 events were copied\n", "audit", "backfill")
	says("0 events were copied\n", "audit", "backfill")
	says("2 events were deleted\n", "archive", "--require-audit")
	if n := query[int](t, db, "SELECT count(*) FROM audit.events"); n != 2 {
		t.Errorf("%d copies", n)
	}
	if sql := outboxOn(t, db, "audit", "sql").succeeds(t).stdout; !strings.Contains(sql, "CREATE SCHEMA IF NOT EXISTS audit;\n") || !strings.Contains(sql, "CREATE TABLE audit.events") {
		t.Errorf("%q", sql)
	}
}
