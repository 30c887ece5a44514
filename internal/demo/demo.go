package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/migrations"
)

const (
	// writers is how many transactions of services are under way at once: enough for the highest rate.
	writers = 8
	// poolSize is for the writers and the handlers, which write too.
	poolSize = 2 * writers
	// maxUnderWay is how many events may wait before the services do: a rate that the handlers cannot keep up with
	// would show nothing but a growing queue.
	maxUnderWay = 250
	// drainPatience is how long the last events may take, beside the time that retries wait by design.
	drainPatience = 10 * time.Second
	// forever is longer than anybody watches.
	forever = 10 * 365 * 24 * time.Hour
)

// Run shows the demo until ctx ends, o.For has passed or o.Events are published, then waits for the
// events under way and removes everything that it made. The error is that of a step that failed, or a promise of
// the outbox that was not kept ([Summary.Err]); the end of ctx is none.
func Run(ctx context.Context, o Options) (Summary, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Summary{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	to := newScreen(o.Out, os.Getenv, stop) // nobody sees what comes after `| head`
	home, err := findPlace(ctx, o, to)
	if err != nil {
		return Summary{}, errors.Join(unlessStopped(ctx, err, to), to.failure())
	}
	summary, err := show(ctx, o, home.url, to)
	err = unlessStopped(ctx, err, to)
	left, leaveErr := home.leave()
	if leaveErr == nil {
		to.fact("cleaned up", left)
	}
	return summary, errors.Join(err, leaveErr, to.failure())
}

// unlessStopped drops the error of a step that the end of ctx cut off. Only what comes before the first event is cut off by it.
func unlessStopped(ctx context.Context, err error, to *screen) error {
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	to.note("Stopped before it had begun.")
	return nil
}

// show is the demo on a new database.
func show(ctx context.Context, o Options, url string, to *screen) (Summary, error) {
	began := time.Now()
	if err := outbox.Migrate(ctx, url); err != nil {
		return Summary{}, err
	}
	to.fact("schema", fmt.Sprintf("version %d, migrated in %.1f s", migrations.Latest, time.Since(began).Seconds()))
	pool, err := openShop(ctx, url)
	if err != nil {
		return Summary{}, err
	}
	defer pool.Close()

	ledger := newLedger(o.Retry, to.attempt)
	d := &demo{
		o: o, to: to, ledger: ledger,
		till: &till{pool: pool, ledger: ledger, stories: newStories(o.Rate, o.attempts(), rand.Uint64())},
	}
	if err := d.play(ctx, url); err != nil {
		return Summary{}, err
	}
	summary, err := d.summary(ctx)
	if err != nil {
		return Summary{}, err
	}
	summary.show(to)
	return summary, summary.Err()
}

// openShop returns connections for the services and makes their table.
func openShop(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("open the shop: %w", err)
	}
	config.MaxConns, config.MinConns = poolSize, poolSize // opened now, not in the first burst
	config.ConnConfig.RuntimeParams["application_name"] = "outbox demo"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the shop: %w", err)
	}
	if _, err := pool.Exec(ctx, shopSQL); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open the shop: %w", err)
	}
	return pool, nil
}

// demo is one run on a database that is ready.
type demo struct {
	o      Options
	to     *screen
	ledger *ledger
	till   *till
	began  time.Time
	ended  time.Time
}

// play runs the worker and publishes, until it is over and nothing is under way.
func (d *demo) play(ctx context.Context, url string) (err error) {
	worker, err := d.worker(url)
	if err != nil {
		return err
	}
	d.explain()
	d.began = time.Now()
	defer d.to.stream(d.status)()

	// The worker goes on until everything is delivered, also after Ctrl-C.
	working, stopWorker := context.WithCancel(context.WithoutCancel(ctx))
	var workerErr error
	workerEnded := make(chan struct{})
	go func() {
		defer close(workerEnded)
		workerErr = worker.Run(working)
	}()
	defer func() {
		stopWorker()
		<-workerEnded
		err = errors.Join(err, workerErr)
	}()
	select {
	case <-worker.Ready():
	case <-workerEnded:
		return nil // the error is the worker's
	case <-ctx.Done():
		return ctx.Err()
	}

	if err := d.publish(ctx, workerEnded); err != nil {
		return err
	}
	d.drain(workerEnded)
	d.ended = time.Now()
	return nil
}

func (d *demo) worker(url string) (*outbox.Worker, error) {
	worker, err := outbox.NewWorker(outbox.Config{
		DatabaseURL: url,
		Retry:       dispatch.Ladder(d.o.Retry...),
		MaxAttempts: d.o.attempts(),
		Log:         workerLog(d.to.aside, d.to.paint),
	})
	if err != nil {
		return nil, err
	}
	worker.Use(d.till.observe)
	d.till.subscribe(worker)
	return worker, nil
}

// explain says what is about to be seen.
func (d *demo) explain() {
	ladder := make([]string, len(d.o.Retry))
	for i, step := range d.o.Retry {
		ladder[i] = step.String()
	}
	d.to.fact("retries", fmt.Sprintf("after %s (by default after 1m, 5m, ... 24h)", strings.Join(ladder, ", ")))
	d.to.fact("latency", "from the commit to the handler; +: since a retry was due")
	d.to.fact("> event", "published by the handler of an earlier one, its cause")
	end := "with Ctrl-C"
	if d.o.For > 0 {
		end = fmt.Sprintf("after %s, or with Ctrl-C", d.o.For)
	}
	d.to.fact("it ends", end)
	d.to.note("")
	d.to.note(d.to.paint.bold(heading))
}

// publish plays scenes at the rate asked for, until ctx, the worker, the time or the number of events ends it.
func (d *demo) publish(ctx context.Context, workerEnded <-chan struct{}) error {
	end := time.Now().Add(forever)
	if d.o.For > 0 {
		end = time.Now().Add(d.o.For)
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	writing, ctx := errgroup.WithContext(ctx)
	writing.SetLimit(writers)
	next := time.Now()
	for left := d.left(); left > 0; left = d.left() {
		if d.ledger.underWay() < maxUnderWay {
			s := d.till.stories.scene(left, time.Until(end) < d.o.retryTime())
			if n := len(s.stories); n > 1 {
				d.remark("a burst: %d orders in one transaction", n)
			}
			writing.Go(func() error { return d.till.write(ctx, s) })
		}
		next = next.Add(d.till.stories.pause())
		if now := time.Now(); now.Sub(next) > time.Second {
			next = now // the database was slower than the rate; do not make up for it
		}
		select {
		case <-time.After(time.Until(next)):
			continue
		case <-ctx.Done():
		case <-workerEnded:
		}
		break
	}
	if err := writing.Wait(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// left is how many events the services may still publish.
func (d *demo) left() int {
	if d.o.Events == 0 {
		return math.MaxInt
	}
	return d.o.Events - d.till.stories.count()
}

// drain waits until every event is delivered or dead. What is left when the patience is over is a fault, which the
// summary finds.
func (d *demo) drain(workerEnded <-chan struct{}) {
	if b, _, _ := d.ledger.read(); b.Retrying > 0 {
		d.remark("stopping: %s to wait for", plural(b.Retrying, "retry"))
	}
	patience := time.After(drainPatience + d.o.retryTime())
	for d.ledger.underWay() > 0 {
		select {
		case <-d.ledger.empty:
		case <-workerEnded:
			return
		case <-patience:
			return
		}
	}
}

func (d *demo) remark(format string, args ...any) {
	d.to.aside(d.to.paint.dim(fmt.Sprintf("%*s-- ", reasonIndent, "") + fmt.Sprintf(format, args...)))
}

// status is the line below the stream.
func (d *demo) status() string {
	b, latency, _ := d.ledger.read()
	return fmt.Sprintf("%3.0f s   %d delivered   p50 %s   p99 %s   %d retrying   %d dead",
		time.Since(d.began).Seconds(), b.Delivered, short(latency.P50), short(latency.P99), b.Retrying, b.Dead)
}

// storedSQL counts every event by its state. It reads the whole table: a demo is not long.
const storedSQL = `
SELECT count(*) FILTER (WHERE published_at IS NOT NULL),
       count(*) FILTER (WHERE published_at IS NULL AND next_retry_at IS DISTINCT FROM 'infinity'),
       count(*) FILTER (WHERE published_at IS NULL AND next_retry_at = 'infinity')
FROM events.outbox`

// summary closes the books. The worker has ended, so that what it handled is settled.
func (d *demo) summary(ctx context.Context) (Summary, error) {
	s := Summary{Elapsed: d.ended.Sub(d.began)}
	s.books, s.Latency, s.PastDue = d.ledger.read()
	// Also after Ctrl-C.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writePatience)
	defer cancel()
	row := d.till.pool.QueryRow(ctx, storedSQL)
	if err := row.Scan(&s.Stored.Published, &s.Stored.Pending, &s.Stored.Dead); err != nil {
		return s, fmt.Errorf("count the stored events: %w", err)
	}
	return s, nil
}
