package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestArchiveCommand(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	ids := insert(t, db, 6)
	execSQL(t, db, "UPDATE events.outbox SET published_at = now() - interval '31 days' WHERE id = ANY ($1)", ids[:2])
	execSQL(t, db, "UPDATE events.outbox SET published_at = now() - interval '2 days' WHERE id = $1", ids[2])
	die(t, db, "boom", ids[3])
	path := filepath.Join(t.TempDir(), "old.ndjson")
	left := func(want int) {
		t.Helper()
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox"); n != want {
			t.Errorf("%d events are left, want %d", n, want)
		}
	}

	o := outboxOn(t, db, "archive", "--dry-run", "--to", path).succeeds(t)
	if o.stdout != "2 events were published longer ago than 720h0m0s; nothing was deleted\n" {
		t.Errorf("%q", o.stdout)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a dry run made the file")
	}
	left(6)
	outboxOn(t, db, "archive", "--to", filepath.Join(path, "nowhere.ndjson")).fails(t, exitFailure, "cannot keep events in")
	outboxOn(t, db, "archive", "--older-than", "30d").fails(t, exitUsage, "is not a duration")
	left(6)

	busy := db.Connect(t)
	if _, err := busy.Exec(t.Context(), "SELECT pg_advisory_lock($1, 'events.outbox'::regclass::oid::int)", pgnames.ArchiveLock); err != nil {
		t.Fatal(err)
	}
	inUse := filepath.Join(t.TempDir(), "used.ndjson")
	other, err := admin.OpenFile(inUse)
	if err != nil {
		t.Fatal(err)
	}
	if o := outboxOn(t, db, "archive", "--to", inUse).succeeds(t); o.stdout != "another archive is at work: nothing to do\n" {
		t.Errorf("%q", o.stdout)
	}
	outboxOn(t, db, "archive", "--dry-run", "--to", inUse).succeeds(t)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if o := outboxOn(t, db, "archive").succeeds(t); o.stdout != "another archive is at work: nothing to do\n" {
		t.Errorf("%q", o.stdout)
	}
	left(6)
	if err := busy.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, db, true, "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = $1)", int64(pgnames.ArchiveLock))

	if o := outboxOn(t, db, "archive", "--to", path).succeeds(t); o.stdout != "2 events were deleted\n" {
		t.Errorf("%q", o.stdout)
	}
	left(4)
	if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%s (%v)", text, err)
	}
	if o := outboxOn(t, db, "archive", "--older-than", "24h", "--to", "-").succeeds(t); strings.Count(o.stdout, "\n") != 1 || !strings.HasPrefix(o.stdout, "{") {
		t.Errorf("%q", o.stdout)
	}
	if o := outboxOn(t, db, "archive", "--older-than", "1ns").succeeds(t); o.stdout != "0 events were deleted\n" {
		t.Errorf("%q", o.stdout)
	}
	left(3)
}
