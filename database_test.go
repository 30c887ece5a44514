package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/migrations"
)

func TestPooler(t *testing.T) {
	t.Parallel()
	for name, through := range map[string]func(*testing.T, *pgtest.DB) string{"a transaction pooler": pooled, "PgBouncer": pgbouncer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPooler(t, through)
		})
	}
}

// testPooler tests what a worker does about a pooler that leads to a database.
func testPooler(t *testing.T, through func(*testing.T, *pgtest.DB) string) {
	refused := func(t *testing.T, cfg Config) {
		t.Helper()
		w, err := NewWorker(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience) // one that is not refused goes on
		defer cancel()
		if err := w.Run(ctx); !errors.Is(err, ErrPooled) || !strings.Contains(err.Error(), "--listen-url") || strings.Contains(err.Error(), "\n") {
			t.Fatalf("error %v, want ErrPooled with what to do on one line", err)
		}
	}

	t.Run("in the only address is refused", func(t *testing.T) {
		t.Parallel()
		refused(t, Config{DatabaseURL: unprepared(through(t, pgtest.Database(t)))})
	})

	t.Run("in the direct address is refused, every time", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		direct := through(t, db)
		for range 3 {
			refused(t, Config{Pool: db.Pool, ListenURL: direct})
		}
	})

	t.Run("in the main address does no harm", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		events, handler := collect()
		startWorker(t, Config{DatabaseURL: unprepared(through(t, db)), ListenURL: db.URL}, func(w *Worker) { w.Subscribe(AnyType, "test", handler) })
		id := publish1(t, db.Pool, newMessage("Placed"))
		if e := receive(t, events); e.ID != id {
			t.Errorf("delivered %d, want %d", e.ID, id)
		}
		eventually(t, db.Pool, 1, "published_at IS NOT NULL")
	})

	t.Run("in the main address is not used in place of a direct one that does not answer", func(t *testing.T) {
		t.Parallel()
		main, err := pgx.ParseConfig(through(t, pgtest.Database(t)))
		if err != nil {
			t.Fatal(err)
		}
		direct, err := pgx.ParseConfig("postgres://127.0.0.1:1/none")
		if err != nil {
			t.Fatal(err)
		}
		db := &database{main: main, direct: direct, split: true, timeout: 10 * time.Second}
		conn, err := db.connectOwner(t.Context())
		if !errors.Is(err, ErrPooled) {
			t.Errorf("connection %v, error %v, want ErrPooled", conn, err)
		}
	})
}

// unprepared returns an address for a pool that keeps no prepared statements.
func unprepared(address string) string {
	const setting = "default_query_exec_mode=exec"
	if strings.Contains(address, "://") {
		return address + "&" + setting
	}
	return address + " " + setting
}

func TestNewerSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	const newer = "CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER LANGUAGE sql AS 'SELECT 99'"
	if _, err := db.Pool.Exec(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(Config{DatabaseURL: db.URL})
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Run": w.Run(t.Context()), "Migrate": Migrate(t.Context(), db.URL)} {
		if !errors.Is(err, ErrNewerSchema) || !strings.Contains(err.Error(), fmt.Sprintf("version 99, this build knows %d; use a newer outbox", migrations.Latest)) {
			t.Errorf("%s: %v, want ErrNewerSchema with what to do", what, err)
		}
	}
}

func TestDirectAddressOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]func(testing.TB) *pgtest.DB{
		"another outbox": pgtest.Database, "a database without an outbox": pgtest.EmptyDatabase,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			main, direct := pgtest.Database(t), elsewhere(t)
			w, err := NewWorker(Config{DatabaseURL: main.URL, ListenURL: direct.URL})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Run(t.Context()); !errors.Is(err, ErrOtherDatabase) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want ErrOtherDatabase on one line", err)
			}
		})
	}
}
