package peers

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverSettings are what decides River's speed.
type riverSettings struct {
	fetchCooldown, fetchPollInterval time.Duration // 0: the default
	maxWorkers                       int
	connections                      int32         // of the client's pool; 0: the pool's default
	timer                            time.Duration // of the candidate
}

var (
	// riverDefaults have the number of workers, which has no default, from the first example of the documentation:
	// https://riverqueue.com/docs. The cooldown is then 100 ms and the poll interval 1 s:
	// https://pkg.go.dev/github.com/riverqueue/river#Config.
	riverDefaults = riverSettings{maxWorkers: 100, timer: river.FetchCooldownDefault}

	// riverTuned are the settings with which River's authors measure it: https://riverqueue.com/docs/benchmarks says 2,000
	// workers, and the program behind that page, cmd/river/riverbench/river_bench.go in River's repository, sets the cooldown
	// ("throughput is limited by this value") and the poll interval. The connections leave room for the two to
	// five that https://riverqueue.com/docs/pgbouncer counts.
	riverTuned = riverSettings{
		fetchCooldown:     2 * time.Millisecond,
		fetchPollInterval: 20 * time.Millisecond,
		maxWorkers:        2000,
		connections:       8,
		timer:             2 * time.Millisecond,
	}

	// riverTuned5ms fetches less often than its authors' benchmark. The cooldown also bounds how many transactions notify,
	// and a commit with a notification keeps others waiting: under a steady load this one can do better.
	riverTuned5ms = riverSettings{
		fetchCooldown:     5 * time.Millisecond,
		fetchPollInterval: 20 * time.Millisecond,
		maxWorkers:        2000,
		connections:       8,
		timer:             5 * time.Millisecond,
	}
)

// riverArgs is the event as a job.
type riverArgs struct {
	Data string `json:"data"`
}

func (riverArgs) Kind() string { return "order_placed" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	handle handler
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.handle(job.Args.Data)
	return nil
}

// riverSystem inserts and works jobs with one client, as River's own benchmark does.
type riverSystem struct {
	pool   *pgxpool.Pool
	worker *riverWorker
	client *river.Client[pgx.Tx]
}

func (s riverSettings) open(ctx context.Context, address string) (system, error) {
	pool, err := newPool(ctx, address, s.connections)
	if err != nil {
		return nil, err
	}
	system, err := s.migrate(ctx, pool)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return system, nil
}

func (s riverSettings) migrate(ctx context.Context, pool *pgxpool.Pool) (*riverSystem, error) {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	worker := &riverWorker{}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown:     s.fetchCooldown,
		FetchPollInterval: s.fetchPollInterval,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: s.maxWorkers}},
		Workers:           workers,
		// Its default is the standard output, between the results.
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	return &riverSystem{pool, worker, client}, err
}

func (s *riverSystem) close() { s.pool.Close() }

func (s *riverSystem) publish(ctx context.Context, tx pgx.Tx, data string) error {
	_, err := s.client.InsertTx(ctx, tx, riverArgs{data}, nil)
	return err
}

// publishMany uses COPY: https://riverqueue.com/docs/batch-job-insertion, "An even faster variant".
func (s *riverSystem) publishMany(ctx context.Context, tx pgx.Tx, data []string) error {
	params := make([]river.InsertManyParams, len(data))
	for i, d := range data {
		params[i].Args = riverArgs{d}
	}
	_, err := s.client.InsertManyFastTx(ctx, tx, params)
	return err
}

func (s *riverSystem) start(ctx context.Context, handle handler) (stop func() error, err error) {
	s.worker.handle = handle
	if err := s.client.Start(ctx); err != nil {
		return nil, err
	}
	return func() error { return s.client.Stop(ctx) }, nil
}

// anyPending lists the states so that the index for fetching serves it.
func (s *riverSystem) anyPending() string {
	return `SELECT EXISTS (SELECT FROM river_job
		WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled', 'cancelled', 'discarded'))`
}

// newPool opens a pool with so many connections at most, or with the pool's default.
func newPool(ctx context.Context, address string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.MaxConns = cmp.Or(connections, config.MaxConns)
	return pgxpool.NewWithConfig(ctx, config)
}
