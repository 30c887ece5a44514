package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/audit"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/poller"
)

// Ordering says what a failed event does to the later ones of its aggregate.
type Ordering = poller.Ordering

const (
	// PerAggregate: a failed event holds back its aggregate until it is published or dead. The default.
	PerAggregate = poller.PerAggregate
	// NoOrdering: later events overtake a failed one.
	NoOrdering = poller.None
)

// RetryPolicy decides when a failed event is tried again: see [dispatch.RetryPolicy], [dispatch.Ladder] and
// [dispatch.BackOff].
type RetryPolicy = dispatch.RetryPolicy

// Config configures a [Worker]. One of DatabaseURL and Pool is required; everything else that is zero takes its
// default.
type Config struct {
	// DatabaseURL is a connection URL or keyword=value string. The worker opens a pool of its own, with up to four
	// connections unless the URL says otherwise (pool_max_conns).
	DatabaseURL string
	// Pool is used instead of DatabaseURL. The worker does not close it.
	Pool *pgxpool.Pool
	// ListenURL is a direct address for the two dedicated sessions (LISTEN, and the ownership with its fetches), where
	// the main one leads through a transaction pooler such as PgBouncer. Defaults to the main address.
	ListenURL string

	// Ordering defaults to PerAggregate.
	Ordering Ordering
	// Retry decides when a failed event is tried again. Defaults to the specification's ladder, [dispatch.DefaultRetry].
	Retry RetryPolicy
	// MaxAttempts is after how many failed attempts an event is a dead letter. Defaults to 10.
	MaxAttempts int
	// Concurrency is how many events are handled at once, each of another aggregate. Defaults to 64.
	Concurrency int
	// HandlerTimeout is how long one call of a handler may take; [WithTimeout] overrides it. Defaults to 30 s.
	HandlerTimeout time.Duration
	// ShutdownGrace is how long handlers may go on once Run's context has ended; then their contexts are
	// cancelled. Defaults to 30 s.
	ShutdownGrace time.Duration

	// BatchSize is how many rows a fetch asks for where there is no backlog. Defaults to 50.
	BatchSize int
	// MaxBatchSize is how many rows a fetch asks for at most. Defaults to 1,000.
	MaxBatchSize int
	// MaxBatchBytes bounds the payloads of one fetch, in bytes as the table stores them; four times as much
	// can be in memory. One event always fits. Defaults to 4 MiB.
	MaxBatchBytes int
	// LaneCap is how many events of one aggregate wait in memory. Defaults to 16.
	LaneCap int
	// PollInterval is how often the worker looks without having been woken. It bounds the delay of an event
	// whose notification was lost before the loss is noticed. Defaults to 1 s.
	PollInterval time.Duration
	// DegradedPollInterval is the same while notifications are known not to arrive. Defaults to 250 ms, or PollInterval
	// if that is shorter.
	DegradedPollInterval time.Duration
	// DurableMarks has the worker wait until the disk has what says that events are published. By default it does not: a crash
	// of the database server, as against one of the worker, then repeats the deliveries of its last fraction of a second
	// (three times wal_writer_delay, PostgreSQL manual, "Asynchronous Commit"), and nothing is lost. Failed
	// attempts are always written to the disk.
	DurableMarks bool
	// ArchiveAt has the worker delete old events once a day, at a time such as "04:00", if it is the owner then: see [admin.Archive].
	// The worker's role then needs DELETE on events.outbox. Empty: never, which is right where `outbox archive` runs from cron.
	ArchiveAt string
	// ArchiveZone is the time zone of ArchiveAt by its IANA name, such as "Europe/Berlin". Defaults to UTC.
	ArchiveZone string
	// Retention is how long ago an event must have been published to be deleted then. Defaults to 30 days.
	Retention time.Duration
	// Audit copies every event to audit.events in the transaction that marks it as published: see package [audit], which makes the
	// table. The worker's role then needs INSERT on it. With ArchiveAt, an event without a copy is not deleted.
	Audit bool
	// OnPublished is called in the transaction that marks events as published, with their ids, for an audit table of
	// your own, for instance. What it writes with tx is committed with the marks, or not at all. It can be called again for the
	// same events, after a crash or a lost answer, so it must not mind (ON CONFLICT DO NOTHING). If it fails nothing is marked: it is called again, and
	// until it succeeds the events stay unpublished and, after a while, none are delivered. Leave the end of the transaction to the worker.
	OnPublished func(ctx context.Context, tx pgx.Tx, ids []int64) error
	// ConnectTimeout bounds the first connection, and each later attempt. Defaults to 10 s.
	ConnectTimeout time.Duration

	// Observer is told what the worker does: see package metrics for Prometheus.
	Observer Observer
	// Log takes one line per change of state, failed attempt and fault; payloads are never logged. The zero value logs nothing.
	Log zerolog.Logger
}

// DefaultConnectTimeout is how long a connection may take to open.
const DefaultConnectTimeout = 10 * time.Second

func (c Config) withDefaults() (Config, error) {
	var errs []error
	switch {
	case c.DatabaseURL == "" && c.Pool == nil:
		errs = append(errs, errors.New("DatabaseURL: is required, or Pool"))
	case c.DatabaseURL != "" && c.Pool != nil:
		errs = append(errs, errors.New("DatabaseURL: set it or Pool, not both"))
	}
	if c.ListenURL != "" {
		if _, err := parseAddress(c.ListenURL); err != nil {
			errs = append(errs, fmt.Errorf("ListenURL: %w", err))
		}
	}
	if c.DatabaseURL != "" {
		if _, err := pgxpool.ParseConfig(c.DatabaseURL); err != nil {
			errs = append(errs, fmt.Errorf("DatabaseURL: %w", err))
		}
	}
	if _, err := c.daily(); err != nil {
		errs = append(errs, err)
	}
	if c.Retention < 0 {
		errs = append(errs, fmt.Errorf("a Retention of %s is negative", c.Retention))
	}
	if c.Observer.SampleInterval < 0 {
		errs = append(errs, fmt.Errorf("Observer: a SampleInterval of %s is negative", c.Observer.SampleInterval))
	}
	if c.Observer.SampleInterval == 0 {
		c.Observer.SampleInterval = DefaultSampleInterval
	}
	if c.ConnectTimeout < 0 {
		errs = append(errs, fmt.Errorf("ConnectTimeout: %s is negative", c.ConnectTimeout))
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if _, err := c.poller().WithDefaultNumbers(); err != nil {
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// onPublished is what joins the transaction of the marks; nil: nothing.
func (c Config) onPublished() func(ctx context.Context, tx pgx.Tx, ids []int64) error {
	switch {
	case !c.Audit:
		return c.OnPublished
	case c.OnPublished == nil:
		return audit.Record
	}
	return func(ctx context.Context, tx pgx.Tx, ids []int64) error {
		if err := audit.Record(ctx, tx, ids); err != nil {
			return err
		}
		return c.OnPublished(ctx, tx, ids)
	}
}

// daily is when to archive; nil: never.
func (c Config) daily() (*daily, error) {
	if c.ArchiveAt == "" {
		if c.ArchiveZone != "" || c.Retention != 0 {
			return nil, errors.New("set ArchiveAt: without it ArchiveZone and Retention have no effect")
		}
		return nil, nil
	}
	at, err := parseDaily(c.ArchiveAt, c.ArchiveZone)
	return &at, err
}

// poller is the part of the configuration that is the poller's.
func (c Config) poller() poller.Config {
	return poller.Config{
		Ordering:             c.Ordering,
		BatchSize:            c.BatchSize,
		MaxBatchSize:         c.MaxBatchSize,
		MaxBatchBytes:        c.MaxBatchBytes,
		Concurrency:          c.Concurrency,
		LaneCap:              c.LaneCap,
		DurableMarks:         c.DurableMarks,
		PollInterval:         c.PollInterval,
		DegradedPollInterval: c.DegradedPollInterval,
		ShutdownGrace:        c.ShutdownGrace,
		Observer:             poller.Observer{Fetched: c.Observer.Fetched, Settled: c.Observer.Settled},
		Log:                  c.Log,
	}
}

// dispatch is the part of the configuration that is the dispatcher's.
func (c Config) dispatch() dispatch.Config {
	return dispatch.Config{Retry: c.Retry, MaxAttempts: c.MaxAttempts, Timeout: c.HandlerTimeout, Called: c.Observer.Called, Log: c.Log}
}
