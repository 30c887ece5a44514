// Package asynqarchive deletes old events of an outbox as a periodic task of asynq, for services that run their cron with it. It is a
// package of its own so that nobody else links asynq.
//
//	mux.Handle(asynqarchive.Type, asynqarchive.Handler(pool, admin.ArchiveOptions{}, log))   // in the asynq.Server
//	entry, err := asynqarchive.Register(scheduler, asynqarchive.Daily)                       // in the asynq.Scheduler
package asynqarchive

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/admin"
)

// Type is the type of the task.
const Type = "outbox:archive"

// Daily is every day at four in the morning, in the scheduler's location, which is UTC unless asynq.SchedulerOpts say otherwise.
const Daily = "0 4 * * *"

const (
	// timeout is how long one archive may take; asynq's own is 30 minutes. One that is cut off goes on with the next try.
	timeout = 6 * time.Hour
	// maxRetry is how often a failed archive is tried again; the next day's finds what it left.
	maxRetry = 3
	// unique is how long the schedulers of other replicas find the task enqueued already.
	unique = time.Hour
)

// NewTask returns a task that archives once. The options override its own: six hours, three retries, and one task an hour.
func NewTask(opts ...asynq.Option) *asynq.Task {
	own := []asynq.Option{asynq.Timeout(timeout), asynq.MaxRetry(maxRetry), asynq.Unique(unique)}
	return asynq.NewTask(Type, nil, append(own, opts...)...)
}

// Register has a scheduler enqueue the task at the times of a cron expression, such as [Daily], and returns the entry's id. That another replica's
// scheduler has enqueued it (asynq.ErrDuplicateTask) shows in asynq's own log, and is no fault.
func Register(scheduler *asynq.Scheduler, cronspec string, opts ...asynq.Option) (entryID string, err error) {
	entryID, err = scheduler.Register(cronspec, NewTask(opts...))
	if err != nil {
		return "", fmt.Errorf("register %s: %w", Type, err)
	}
	return entryID, nil
}

// Handler archives when a task comes: see [admin.Archive]. The task's result is how many events were deleted. While another archive is at
// work there is nothing to do, and the task succeeds.
func Handler(db admin.DB, options admin.ArchiveOptions, log zerolog.Logger) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		began := time.Now()
		archived, err := admin.Archive(ctx, db, options)
		archived.Log(log, err, time.Since(began))
		if err != nil && !errors.Is(err, admin.ErrArchiving) {
			return err
		}
		if w := task.ResultWriter(); w != nil { // nil for a task that no server has taken
			if _, err := w.Write(strconv.AppendInt(nil, archived.Events, 10)); err != nil {
				return fmt.Errorf("write the task's result: %w", err)
			}
		}
		return nil
	})
}
