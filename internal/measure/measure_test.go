package measure_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// server returns the tests' own, and a database of it to look around from.
func server(t *testing.T) (*measure.Server, *pgtest.DB) {
	t.Helper()
	db := pgtest.EmptyDatabase(t)
	config, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	return measure.NewServer(config), db
}

// pair is a worker and its floor, stopped with the test.
func pair(t *testing.T, wakes measure.Wakes) *measure.Pair {
	t.Helper()
	s, _ := server(t)
	p, err := measure.StartPair(t.Context(), s, wakes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestLatency(t *testing.T) {
	t.Parallel()
	one := func(ctx context.Context, p *measure.Pair) (measure.Latency, error) {
		return p.OneByOne(ctx, measure.OneByOne{Events: 5})
	}
	many := func(ctx context.Context, p *measure.Pair) (measure.Latency, error) {
		return p.OpenLoop(ctx, measure.OpenLoop{Rate: 200, Publishers: 3, Slice: 100 * time.Millisecond, Slices: 2})
	}
	for _, tt := range []struct {
		name  string
		wakes measure.Wakes
		run   func(context.Context, *measure.Pair) (measure.Latency, error)
	}{
		{"idle", measure.Notified, one},
		{"woken", measure.Woken, one},
		{"steady", measure.Notified, many},
		{"polling", measure.Polling, many},
	} {
		t.Run(tt.name+" counts every event of both arms", func(t *testing.T) {
			t.Parallel()
			l, err := tt.run(t.Context(), pair(t, tt.wakes))
			if err != nil {
				t.Fatal(err)
			}
			if l.Name != tt.name || l.Worker.Missed != 0 {
				t.Errorf("%+v", l)
			}
			for arm, a := range map[string]measure.LatencyArm{"worker": l.Worker, "floor": l.Floor} {
				if l.Rate == 0 && (a.FromCommit.Count != 5 || a.FromDue != nil) {
					t.Errorf("%s: %+v", arm, a)
				}
				if l.Rate != 0 && (a.FromDue == nil || a.FromDue.Count == 0 || a.FromDue.Count != a.FromCommit.Count+int64(a.Unsent)) {
					t.Errorf("%s: %+v", arm, a)
				}
				if s := a.Figure(); s.P50 < 0 || s.P50 > s.P95 || s.P95 > s.P99 || s.P99 > s.P999 || s.P999 > s.Max {
					t.Errorf("%s: percentiles do not rise: %+v", arm, s)
				}
			}
			if l.Rate != 0 && l.Worker.Unsent == 0 && l.Worker.FromDue.P50 < l.Worker.FromCommit.P50 {
				t.Error("from the time that events were due takes less than from their commits")
			}
		})
	}
	t.Run("a limit ends it before all events", func(t *testing.T) {
		t.Parallel()
		l, err := pair(t, measure.Notified).OneByOne(t.Context(), measure.OneByOne{Events: 1_000_000, Limit: time.Millisecond})
		if err != nil || l.Worker.FromCommit.Count == 0 || l.Worker.FromCommit.Count > 1000 {
			t.Errorf("%d events, %v", l.Worker.FromCommit.Count, err)
		}
	})
	t.Run("an open loop counts what there was no time for", func(t *testing.T) {
		t.Parallel()
		l, err := pair(t, measure.Notified).OpenLoop(t.Context(), measure.OpenLoop{
			Rate: 200_000, Publishers: 1, Slice: 100 * time.Millisecond, Slices: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if l.Worker.Unsent == 0 || l.Worker.FromDue.Max < 2e5 {
			t.Errorf("%+v", l.Worker)
		}
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("works off the whole backlog", func(t *testing.T) {
		t.Parallel()
		s, _ := server(t)
		d, err := measure.Drain{Events: 3000, Aggregates: 7, Bytes: 100}.Run(t.Context(), s)
		if err != nil || d.Events != 3000 || d.Worker <= 0 || d.Floor <= 0 {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("a limit ends it before that", func(t *testing.T) {
		t.Parallel()
		s, _ := server(t)
		d, err := measure.Drain{Events: 60_000, Aggregates: 100_000, Bytes: 20, Limit: time.Millisecond}.Run(t.Context(), s)
		if err != nil || d.Events != 10_000 || d.Worker <= 0 || d.Floor <= 0 {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("with an option and without", func(t *testing.T) {
		t.Parallel()
		s, _ := server(t)
		var published atomic.Int64
		count := measure.Option{Name: "count", Set: func(_ context.Context, c *outbox.Config) error {
			c.OnPublished = func(_ context.Context, _ pgx.Tx, ids []int64) error { published.Add(int64(len(ids))); return nil }
			return nil
		}}
		d, err := measure.OptionDrain{Drain: measure.Drain{Events: 2000, Aggregates: 10, Bytes: 20, Repeat: 2}, Option: count}.Run(t.Context(), s)
		if err != nil || d.Option != "count" || d.Events != 2000 || d.With <= 0 || d.Without <= 0 || published.Load() != 4000 {
			t.Errorf("%+v, %v, %d published with it", d, err, published.Load())
		}
	})
	t.Run("an option that cannot be set", func(t *testing.T) {
		t.Parallel()
		s, _ := server(t)
		wrong := measure.Option{Name: "wrong", Set: func(context.Context, *outbox.Config) error { return errors.New("no") }}
		_, err := measure.OptionDrain{Drain: measure.Drain{Events: 10, Aggregates: 10, Bytes: 20}, Option: wrong}.Run(t.Context(), s)
		if err == nil || !strings.Contains(err.Error(), "set wrong: no") {
			t.Error(err)
		}
	})
	for _, h := range []measure.Hindrance{measure.HeldSnapshot, measure.OpenWriter} {
		t.Run("goes on under a hindrance: "+string(h), func(t *testing.T) {
			t.Parallel()
			s, _ := server(t)
			d, err := measure.HinderedDrain{
				Drain: measure.Drain{Events: 1000, Aggregates: 10, Bytes: 20}, Published: 2000, Hindrance: h,
			}.Run(t.Context(), s)
			if err != nil || d.Worker <= 0 || d.Floor <= 0 || d.Free <= 0 {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	p, err := measure.NewPublishers(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	one, err := p.Publish(t.Context(), measure.Publish{Sessions: 3, Slice: 50 * time.Millisecond, Slices: 3})
	if err != nil {
		t.Fatal(err)
	}
	for mode, arm := range map[string]measure.PublishArm{"off": one.Off, "always": one.Always, "gated": one.Gated} {
		if len(arm.Slices) != 3 || arm.PerSecond <= 0 || arm.Commit.Count < 9 {
			t.Errorf("%s: %+v", mode, arm)
		}
	}
	many, err := p.Batches(t.Context(), measure.Batches{Size: 10, Slice: 20 * time.Millisecond, Slices: 1})
	if err != nil || many.Batch <= 0 || many.Floor <= 0 {
		t.Errorf("%+v, %v", many, err)
	}
}

func TestIdle(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	// Its fallback poll, once a second, is the least that a worker asks.
	idle, err := measure.IdleWorker{Window: 3 * time.Second}.Run(t.Context(), s)
	if err != nil || idle.Queries < 0.5 {
		t.Errorf("%+v, %v", idle, err)
	}
}

func TestTemporaryDatabases(t *testing.T) {
	t.Parallel()

	t.Run("are dropped when the measuring is interrupted", func(t *testing.T) {
		t.Parallel()
		s, own := server(t)
		ctx, cancel := context.WithCancel(t.Context())
		db, err := s.CreateDatabase(ctx)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := db.Connect(t.Context()) // a session that is still open
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		cancel()
		if err := db.Drop(); err != nil {
			t.Error(err)
		}
		var left bool
		if err := own.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", db.Name).Scan(&left); err != nil || left {
			t.Errorf("database %s is left over (%v)", db.Name, err)
		}
	})
	t.Run("have none of the limits that a role may have", func(t *testing.T) {
		t.Parallel()
		own := pgtest.EmptyDatabase(t)
		role := newRole(t, own, "CREATEDB LOGIN")
		if _, err := own.Pool.Exec(t.Context(), "ALTER ROLE "+role+" SET statement_timeout = '7s'"); err != nil {
			t.Fatal(err)
		}
		config, err := pgxpool.ParseConfig(own.URL)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.User = role
		s := measure.NewServer(config)
		if err := s.CheckPrivileges(t.Context()); err != nil {
			t.Fatal(err)
		}
		db, err := s.CreateDatabase(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := db.Drop(); err != nil {
				t.Error(err)
			}
		}()
		conn, err := db.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		var limit string
		if err := conn.QueryRow(t.Context(), "SHOW statement_timeout").Scan(&limit); err != nil || limit != "0" {
			t.Errorf("statement_timeout %s, %v", limit, err)
		}
	})
	t.Run("need the privilege to create them", func(t *testing.T) {
		t.Parallel()
		_, db := server(t)
		role := newRole(t, db, "")
		config, err := pgxpool.ParseConfig(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.RuntimeParams["role"] = role
		s := measure.NewServer(config)
		if err := s.CheckPrivileges(t.Context()); !errors.Is(err, measure.ErrCreateDB) {
			t.Errorf("check: %v", err)
		}
		if _, err := s.CreateDatabase(t.Context()); !errors.Is(err, measure.ErrCreateDB) {
			t.Errorf("create: %v", err)
		}
	})
}

// newRole makes a role, dropped with the test.
func newRole(t *testing.T, db *pgtest.DB, attributes string) (role string) {
	t.Helper()
	role = strings.ReplaceAll(db.Name, "outbox_test", "somebody")
	if _, err := db.Pool.Exec(t.Context(), "CREATE ROLE "+role+" "+attributes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.Pool.Exec(context.Background(), "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	return role
}

func TestServer(t *testing.T) {
	t.Parallel()
	s, db := server(t)

	t.Run("describes itself", func(t *testing.T) {
		e, err := s.Environment(t.Context(), "v1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		if e.Outbox != "v1.2.3" || e.Postgres == "" || len(e.Settings) == 0 || e.RoundTrip <= 0 || e.Cores == 0 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("knows how many sessions it has room for", func(t *testing.T) {
		before, err := s.FreeConnections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var most int
		if err := db.Pool.QueryRow(t.Context(), "SELECT current_setting('max_connections')::int").Scan(&most); err != nil {
			t.Fatal(err)
		}
		if before <= 0 || before > most {
			t.Errorf("%d of %d", before, most)
		}
	})
}

func TestResults(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(measure.Results{Idle: &measure.Idled{Queries: 2, CPU: 0.001}})
	if err != nil || !strings.Contains(string(text), `"queries_per_s":2`) {
		t.Errorf("%s, %v", text, err)
	}
}
