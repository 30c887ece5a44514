package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestDaily(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for _, c := range []struct{ at, zone, now, want string }{
		{"04:00", "", "2026-12-02T03:59:59Z", "2026-12-02T04:00:00Z"},
		{"04:00", "UTC", "2026-12-02T04:00:00Z", "2026-12-03T04:00:00Z"},
		{"04:00", "Asia/Seoul", "2026-12-02T18:00:00Z", "2026-12-02T19:00:00Z"},
		{"00:00", "Europe/Berlin", "2026-12-31T22:59:00Z", "2026-12-31T23:00:00Z"},
		{"04:00", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T02:00:00Z"}, // the clocks have been put forward
		{"04:00", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T03:00:00Z"}, // and back
	} {
		d, err := parseDaily(c.at, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.after(at(c.now)); !got.Equal(at(c.want)) {
			t.Errorf("%s %s after %s: %s, want %s", c.at, c.zone, c.now, got.UTC(), c.want)
		}
	}

	t.Run("it comes once a day", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			zone := rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"}).Draw(t, "zone")
			location, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			d := daily{rapid.IntRange(0, 23).Draw(t, "hour"), rapid.IntRange(0, 59).Draw(t, "minute"), location}
			now := time.Unix(rapid.Int64Range(1.7e9, 2e9).Draw(t, "now"), 0)
			next := d.after(now)
			if wait := next.Sub(now); wait <= 0 || wait > 25*time.Hour+30*time.Minute {
				t.Fatalf("after %s it comes at %s", now.In(location), next)
			}
			if again := d.after(next).Sub(next); again < 22*time.Hour || again > 26*time.Hour {
				t.Fatalf("from %s to the next it takes %s", next, again)
			}
		})
	})

	t.Run("what is none is refused", func(t *testing.T) {
		t.Parallel()
		for _, c := range []Config{
			{DatabaseURL: "postgres://h/d", ArchiveAt: "25:00"},
			{DatabaseURL: "postgres://h/d", ArchiveAt: "04:00", ArchiveZone: "Mars/Olympus"},
			{DatabaseURL: "postgres://h/d", Retention: time.Hour},
			{DatabaseURL: "postgres://h/d", ArchiveAt: "04:00", Retention: -1},
		} {
			if _, err := NewWorker(c); err == nil {
				t.Errorf("%+v: no error", c)
			}
		}
	})
}

func TestArchiver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var owner atomic.Bool
		var runs atomic.Int64
		var lines strings.Builder
		stop := make(chan struct{})
		a := &archiver{
			at:    daily{4, 0, time.UTC},
			owner: owner.Load,
			archive: func(ctx context.Context) (admin.Archived, error) {
				if runs.Add(1) <= 2 {
					return admin.Archived{}, errors.New("no route") // it goes on the next day
				}
				close(stop)
				<-ctx.Done()
				return admin.Archived{Events: 13_000}, fmt.Errorf("archive: %w", ctx.Err())
			},
			log: zerolog.New(&lines),
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.run(ctx)
		}()
		for day, want := range []int64{0, 1, 2, 2} {
			owner.Store(day == 1 || day == 2)
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			if n := runs.Load(); n != want {
				t.Errorf("after day %d it ran %d times, want %d", day, n, want)
			}
		}
		owner.Store(true)
		<-stop
		cancel()
		<-done
		if said := strings.Split(lines.String(), "\n"); len(said) != 4 || !strings.Contains(said[0], "archive_failed") ||
			!strings.Contains(said[2], "archive_stopped") || !strings.Contains(said[2], `"events":13000`) {
			t.Errorf("it logged %q", said)
		}
	})
}

func TestWorkerArchives(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	exec := func(sql string) {
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
		SELECT 'order', gen_random_uuid(), 'Placed', '{}', now() - i * interval '1 day' FROM generate_series(1, 40) i`)
	w := startWorker(t, Config{DatabaseURL: db.URL, ArchiveAt: "04:00", Retention: 10 * 24 * time.Hour}, func(*Worker) {})
	at, err := w.cfg.daily()
	if err != nil {
		t.Fatal(err)
	}
	a := w.archiver(*at, &database{pool: db.Pool}, w.poller.Load())
	if !a.owner() {
		t.Error("it is not the owner")
	}
	a.once(t.Context())
	eventually(t, db.Pool, 9, "true")
}
