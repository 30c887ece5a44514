package poller

import (
	"strings"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestOwnerSession(t *testing.T) {
	t.Parallel()

	t.Run("an event that takes long to arrive arrives, and the ownership is kept", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		b := prepare(t, db, nil, func(c *Config) { c.Connect = connectTo(t, db.Through(t, proxy), "owner") })
		const seconds = 4 // the server is idle for most of them: buffers take what it sends
		proxy.Throttle(6 << 20 / seconds)
		var id int64
		err := db.Pool.QueryRow(t.Context(), `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', gen_random_uuid(), 'Placed', jsonb_build_object('data', string_agg(md5(i::text), ''))
			FROM generate_series(1, (6 << 20) / 32) i RETURNING id`).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		b.run()
		b.waitRows(1, "published_at IS NOT NULL")
		if got := b.seen(); len(got) != 1 || got[0] != id {
			t.Errorf("handled %v, want %d once", got, id)
		}
		if strings.Contains(b.log.String(), "owner_lost") {
			t.Errorf("the ownership was lost:\n%s", b.log)
		}
	})

	t.Run("a session whose network falls silent in the middle of an answer is given up", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		b := start(t, db, nil, func(c *Config) { c.Connect = connectTo(t, db.Through(t, proxy), "owner") })
		proxy.Blackhole()
		b.Wake()
		b.wait("the loss to be noted", func() bool { return strings.Contains(b.log.String(), "owner_lost") })
		if !strings.Contains(b.log.String(), "the connection is dead") {
			t.Errorf("the log does not say why:\n%s", b.log)
		}
		proxy.Heal()
		id := insert(t, db.Pool, 1)
		b.wait("the event", func() bool { b.Wake(); got := b.seen(); return len(got) == 1 && got[0] == id })
	})
}
