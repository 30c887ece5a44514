package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pause"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
)

// Defaults of [ArchiveOptions].
const (
	// DefaultRetention is the specification's.
	DefaultRetention = 30 * 24 * time.Hour
	// DefaultArchiveBatch takes some 30 ms where payloads are small.
	DefaultArchiveBatch = 1000
	// DefaultArchivePause leaves most of the time to everybody else.
	DefaultArchivePause = 100 * time.Millisecond
	// DefaultArchiveTimeout is far longer than a batch takes.
	DefaultArchiveTimeout = 30 * time.Second
)

// youngRanges is after how many batches in a row without an expired event an archive takes the rest for too young.
const youngRanges = 10

// ArchiveOptions says what to delete, and how gently.
type ArchiveOptions struct {
	Retention time.Duration // what was published longer ago is deleted; 0: 30 days
	BatchSize int           // rows looked at in a transaction; 0: 1,000
	Pause     time.Duration // between two transactions; 0: 100 ms, negative: none
	Timeout   time.Duration // for one statement; 0: 30 s
	Keep      Keep          // called with the events before they are deleted; nil: they are not kept
	Only      Only          // says which of them may be deleted; nil: all
	DryRun    bool          // count, and delete nothing
}

// Only returns those of the events that may be deleted, such as audit.Recorded: those that have been copied. It is called in the transaction tx
// that deletes them, where they are locked.
type Only func(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error)

// Archived is what an archive did.
type Archived struct {
	Events   int64 // deleted; in a dry run: that would be
	Withheld int64 // old enough, and not deleted since [ArchiveOptions.Only] left them out
	// StoppedAt is the id of the event behind which it did not look, since it took what follows for too young; nil: it has looked at all.
	StoppedAt *int64
}

// Log writes what an archive did, with the error that [Archive] returned besides, as one line.
func (a Archived) Log(log zerolog.Logger, err error, took time.Duration) {
	line, message := log.Info(), "archived"
	switch {
	case errors.Is(err, ErrArchiving):
		message = "archive_skipped"
	case errors.Is(err, context.Canceled): // by whoever wanted it so
		message = "archive_stopped"
	case err != nil:
		line, message = log.Error().Err(err), "archive_failed"
	case a.Withheld > 0:
		line, message = log.Warn(), "archive_incomplete"
	}
	if a.Withheld > 0 {
		line = line.Int64("withheld", a.Withheld)
	}
	if a.StoppedAt != nil {
		line = line.Int64("stopped_at_id", *a.StoppedAt)
	}
	line.Int64("events", a.Events).Dur("took_ms", took).Msg(message)
}

func (o ArchiveOptions) withDefaults() (ArchiveOptions, error) {
	if o.Retention < 0 || o.BatchSize < 0 || o.Timeout < 0 {
		return o, errors.New("a negative retention, batch size or timeout")
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.BatchSize == 0 {
		o.BatchSize = DefaultArchiveBatch
	}
	if o.Pause == 0 {
		o.Pause = DefaultArchivePause
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultArchiveTimeout
	}
	return o, nil
}

// ErrArchiving is returned while another archive of the same outbox is at work.
var ErrArchiving = errors.New("another archive is at work")

// Archive deletes published events that are older than the retention. Pending, retrying and dead ones are
// never deleted. It takes small batches, a transaction each, with a pause in between, and leaves out what somebody else has locked: so
// it can be stopped at any time, and the next one goes on. Two never work at the same time: the second gets [ErrArchiving]. So may, rarely,
// the first, if the second begins just between two of its transactions, and then goes on in its place. A dry run stands in nobody's way. What
// it returns has been done, also after an error.
//
// It walks the events in the order of their ids, and stops where it has met ten batches in a row with events that are too young and none that is old
// enough: published order follows id order closely.
func Archive(ctx context.Context, db DB, o ArchiveOptions) (archived Archived, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return archived, fmt.Errorf("archive: %w", err)
	}
	w := walk{after: math.MinInt64}
	for !w.done {
		n, err := w.step(ctx, db, o)
		archived.Events += n.Events
		archived.Withheld += n.Withheld
		if err != nil {
			return archived, fmt.Errorf("archive: %w", err)
		}
		w.tired = n.Events > 0 && !o.DryRun
	}
	if w.young >= youngRanges {
		archived.StoppedAt = &w.after
	}
	return archived, nil
}

// walk is how far an archive has come.
type walk struct {
	after int64
	young int  // ranges in a row
	tired bool // it has deleted, and pauses before it goes on
	done  bool
}

// step archives the next range of ids, in one transaction. It pauses in there, before it touches anything: so it has the lock in
// its pauses as well, in which another archive would find it free and take over.
func (w *walk) step(ctx context.Context, db DB, o ArchiveOptions) (n Archived, err error) {
	var found eventsdb.ArchiveRangeRow
	err = within(ctx, db, func(tx pgx.Tx, q *eventsdb.Queries) error {
		may, err := q.TryArchive(ctx, eventsdb.TryArchiveParams{OnlyLook: o.DryRun, TimeoutMs: o.Timeout.Milliseconds(), LockKey: pgnames.ArchiveLock})
		if err != nil {
			return err
		}
		if !may {
			return ErrArchiving
		}
		if w.tired && o.Pause > 0 {
			if err := rest(ctx, tx, o.Pause); err != nil {
				return err
			}
		}
		found, err = q.ArchiveRange(ctx, eventsdb.ArchiveRangeParams{
			OnlyLook: o.DryRun, After: w.after, RetentionUs: o.Retention.Microseconds(), PageSize: int64(o.BatchSize),
		})
		if err != nil || len(found.Expired) == 0 {
			return err
		}
		n, err = archive(ctx, tx, q, found.Expired, o)
		return err
	})
	if err != nil {
		return Archived{}, err
	}
	w.took(found, o.BatchSize)
	return n, nil
}

// rest pauses within a transaction, which the server must not take for one that was forgotten. As a command without a snapshot, SET also lets go of
// that of the query before it, which would keep VACUUM from its work.
func rest(ctx context.Context, tx pgx.Tx, d time.Duration) error {
	if _, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
		return err
	}
	return pause.For(ctx, d)
}

// archive deletes events that are old enough and locked.
func archive(ctx context.Context, tx pgx.Tx, q *eventsdb.Queries, ids []int64, o ArchiveOptions) (n Archived, err error) {
	may := ids
	if o.Only != nil {
		if may, err = o.Only(ctx, tx, ids); err != nil {
			return n, fmt.Errorf("ask which events may be deleted: %w", err)
		}
		n.Withheld = int64(len(ids) - len(may))
	}
	if len(may) == 0 || o.DryRun {
		n.Events = int64(len(may))
		return n, nil
	}
	if o.Keep != nil {
		if err := o.Keep(ctx, tx, may); err != nil {
			return n, fmt.Errorf("keep the events: %w", err)
		}
	}
	n.Events, err = q.DeletePublished(ctx, may)
	return n, err
}

// took takes in a range of up to so many rows.
func (w *walk) took(r eventsdb.ArchiveRangeRow, size int) {
	switch {
	case r.Old:
		w.young = 0
	case r.Young: // a range without a published row says nothing: dead letters stay where the walk begins
		w.young++
	}
	w.after = r.LastID
	w.done = r.Scanned < int64(size) || w.young >= youngRanges
}
