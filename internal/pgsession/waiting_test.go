package pgsession

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestWaiting(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), Config(config, "test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	waiting := Waiting(conn)
	if d := waiting(); d != 0 {
		t.Errorf("an idle session has been waiting for %s", d)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(0.2)")
		answered <- err
	}()
	longest := time.Duration(0)
	for done := false; !done; {
		select {
		case err := <-answered:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
			longest = max(longest, waiting())
			time.Sleep(time.Millisecond)
		}
	}
	if longest == 0 || waiting() != 0 {
		t.Errorf("waited %s during a statement, and %s after it", longest, waiting())
	}
}
