package asynqarchive_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/asynqarchive"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// redisServer starts a Redis server for the test, and returns where it is.
func redisServer(t *testing.T) asynq.RedisClientOpt {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("no redis-server here: install it to run this test (on Debian: apt-get install redis-server)")
	}
	socket := filepath.Join(t.TempDir(), "redis.sock")
	server := exec.Command(program, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", filepath.Dir(socket))
	server.Stdout = io.Discard
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	pgtest.Eventually(t, func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("redis-server does not answer: %w", err)
		}
		return conn.Close()
	})
	return asynq.RedisClientOpt{Network: "unix", Addr: socket}
}

// serve runs an asynq server with the handler until the test ends.
func serve(t *testing.T, redis asynq.RedisClientOpt, handler asynq.Handler) {
	t.Helper()
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency: 2, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond, DelayedTaskCheckInterval: 10 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 10 * time.Millisecond },
	})
	mux := asynq.NewServeMux()
	mux.Handle(asynqarchive.Type, handler)
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
}

// database has so many old events, and a young one.
func database(t *testing.T, old int) *pgtest.DB {
	t.Helper()
	db := pgtest.Database(t)
	_, err := db.Pool.Exec(t.Context(), `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
		SELECT 'order', gen_random_uuid(), 'Placed', '{}', now() - CASE WHEN i = 0 THEN '1 day' ELSE '31 days' END::interval FROM generate_series(0, $1::int) i`, old)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// left waits until so many events are left.
func left(t *testing.T, db *pgtest.DB, want int) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		var n int
		if err := db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM events.outbox").Scan(&n); err != nil {
			return err
		}
		if n != want {
			return fmt.Errorf("%d events are left, want %d", n, want)
		}
		return nil
	})
}

func TestTask(t *testing.T) {
	t.Parallel()
	redis := redisServer(t)
	db := database(t, 5)
	serve(t, redis, asynqarchive.Handler(db.Pool, admin.ArchiveOptions{}, zerolog.Nop()))
	client := asynq.NewClient(redis)
	defer client.Close()
	info, err := client.Enqueue(asynqarchive.NewTask(asynq.Retention(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	left(t, db, 1)
	inspector := asynq.NewInspector(redis)
	defer inspector.Close()
	pgtest.Eventually(t, func() error {
		done, err := inspector.GetTaskInfo(info.Queue, info.ID)
		if err != nil {
			return err
		}
		if done.State != asynq.TaskStateCompleted || string(done.Result) != "5" {
			return fmt.Errorf("the task is %s, its result %q", done.State, done.Result)
		}
		return nil
	})
}

func TestScheduler(t *testing.T) {
	t.Parallel()
	redis := redisServer(t)
	db := database(t, 3)
	serve(t, redis, asynqarchive.Handler(db.Pool, admin.ArchiveOptions{}, zerolog.Nop()))
	scheduler := asynq.NewScheduler(redis, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
	if _, err := asynqarchive.Register(scheduler, "@every 1s"); err != nil {
		t.Fatal(err)
	}
	if _, err := asynqarchive.Register(scheduler, "at dawn"); err == nil || !strings.Contains(err.Error(), asynqarchive.Type) {
		t.Errorf("a wrong expression: %v", err)
	}
	if err := scheduler.Start(); err != nil {
		t.Fatal(err)
	}
	defer scheduler.Shutdown()
	left(t, db, 1)
}

func TestUnique(t *testing.T) {
	t.Parallel()
	client := asynq.NewClient(redisServer(t))
	defer client.Close()
	if _, err := client.Enqueue(asynqarchive.NewTask()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Enqueue(asynqarchive.NewTask()); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("a second one in the hour: %v", err)
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	db := database(t, 2)
	handler := func(o admin.ArchiveOptions) error {
		return asynqarchive.Handler(db.Pool, o, zerolog.Nop()).ProcessTask(context.Background(), asynqarchive.NewTask())
	}
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Archive(t.Context(), tx, admin.ArchiveOptions{Retention: 1000 * time.Hour}); err != nil { // has nothing to do, and holds the lock until the transaction ends
		t.Fatal(err)
	}
	if err := handler(admin.ArchiveOptions{}); err != nil {
		t.Errorf("while another one is at work: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	left(t, db, 3)
	if err := handler(admin.ArchiveOptions{Retention: -1}); err == nil {
		t.Error("an archive that fails is no error")
	}
	if err := handler(admin.ArchiveOptions{}); err != nil {
		t.Error(err)
	}
	left(t, db, 1)
}
