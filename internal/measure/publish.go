package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/migrations"
)

// Publish is a measurement of what an outbox costs those who publish, by the three modes of notifications.
type Publish struct {
	Sessions int           // that publish at once, one event a commit
	Slice    time.Duration // the modes take turns in slices of this length
	Slices   int           // of each mode
}

// Published is the result of a [Publish].
type Published struct {
	Sessions int        `json:"sessions"`
	Off      PublishArm `json:"off"`    // no notifications and a worker that polls: the floor
	Always   PublishArm `json:"always"` // a notification in every transaction
	Gated    PublishArm `json:"gated"`  // while the worker sleeps
}

// RatioFloor is the gated rate ÷ that without notifications, RatioAlways ÷ that with one in every transaction.
func (p Published) RatioFloor() float64  { return Ratio(p.Gated.PerSecond, p.Off.PerSecond) }
func (p Published) RatioAlways() float64 { return Ratio(p.Gated.PerSecond, p.Always.PerSecond) }

// MarshalJSON adds the ratios.
func (p Published) MarshalJSON() ([]byte, error) {
	type plain Published
	return json.Marshal(struct {
		plain
		Floor  float64 `json:"ratio_floor"`
		Always float64 `json:"ratio_always"`
	}{plain(p), p.RatioFloor(), p.RatioAlways()})
}

// PublishArm is what sessions achieved in one mode, while a worker delivered their events.
type PublishArm struct {
	PerSecond float64   `json:"commits_per_s"` // the median of the slices
	Slices    []float64 `json:"slices"`
	Commit    Summary   `json:"commit"` // from sending COMMIT to its acknowledgement
}

// Batches is a measurement of PublishBatch by one session.
type Batches struct {
	Size   int // events of one call
	Slice  time.Duration
	Slices int
}

// Batched is the result of a [Batches], in events a second.
type Batched struct {
	Size  int     `json:"size"`
	Batch float64 `json:"events_per_s"`
	Floor float64 `json:"floor_per_s"` // one INSERT of ready rows from arrays, without notifications
}

// Ratio is the rate of PublishBatch ÷ the floor's.
func (b Batched) Ratio() float64 { return Ratio(b.Batch, b.Floor) }

// MarshalJSON adds the ratio.
func (b Batched) MarshalJSON() ([]byte, error) {
	type plain Batched
	return json.Marshal(struct {
		plain
		Ratio float64 `json:"ratio"`
	}{plain(b), b.Ratio()})
}

// Publishers is a database to publish to. Measurements share it, and take turns with its modes: a worker is started for each.
type Publishers struct{ db *Database }

// NewPublishers makes the database.
func NewPublishers(ctx context.Context, s *Server) (*Publishers, error) {
	db, err := s.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	return &Publishers{db}, nil
}

// Close drops it.
func (p *Publishers) Close() error { return p.db.Drop() }

// Publish measures single events.
func (p *Publishers) Publish(ctx context.Context, m Publish) (Published, error) {
	off, always, gated := newPublishArm(migrations.NotifyOff, singleEvents), newPublishArm(migrations.NotifyAlways, singleEvents), newPublishArm(migrations.NotifyGated, singleEvents)
	if err := p.takeTurns(ctx, m.Sessions, m.Slice, m.Slices, off, always, gated); err != nil {
		return Published{}, err
	}
	return Published{Sessions: m.Sessions, Off: off.result(), Always: always.result(), Gated: gated.result()}, nil
}

// Batches measures many events of one call.
func (p *Publishers) Batches(ctx context.Context, m Batches) (Batched, error) {
	floor, batch := newPublishArm(migrations.NotifyOff, bareInserts(m.Size)), newPublishArm(migrations.NotifyGated, batches(m.Size))
	if err := p.takeTurns(ctx, 1, m.Slice, m.Slices, floor, batch); err != nil {
		return Batched{}, err
	}
	return Batched{Size: m.Size, Batch: batch.result().PerSecond, Floor: floor.result().PerSecond}, nil
}

// takeTurns measures the arms in slices, with the same sessions.
func (p *Publishers) takeTurns(ctx context.Context, sessions int, slice time.Duration, slices int, arms ...*publishArm) error {
	conns, err := openPublishers(ctx, p.db, sessions, func(context.Context, *pgx.Conn) error { return nil })
	if err != nil {
		return err
	}
	defer closePublishers(ctx, conns)
	for range slices {
		for _, arm := range arms {
			if err := arm.slice(ctx, p.db, conns, slice); err != nil {
				return err
			}
		}
	}
	return nil
}

// publishing is a way to publish: once commits some events and says how many, and how long the commit took.
type publishing struct {
	prepare func(context.Context, *pgx.Conn) error
	once    func(context.Context, *pgx.Conn) (events int, commit time.Duration, err error)
}

// singleEvents is a transaction of a service with one event.
var singleEvents = publishing{
	prepare: publishNone,
	once: func(ctx context.Context, conn *pgx.Conn) (int, time.Duration, error) {
		p, err := publishOne(ctx, conn)
		return 1, p.commit, err
	},
}

// batches publishes many events at once, in a transaction of their own.
func batches(size int) publishing {
	publish := func(ctx context.Context, q outbox.Querier) error {
		messages := make([]outbox.Message, size)
		for i := range messages {
			messages[i] = smallMessage()
		}
		_, err := outbox.PublishBatch(ctx, q, messages)
		return err
	}
	return calls(size, publish)
}

// bareInserts does the same with one statement that has nothing to check or to encode.
func bareInserts(size int) publishing {
	payloads := make([]string, size)
	for i := range payloads {
		payloads[i] = `{"version": 1, "data": "xxxxxxxxxxxxxxxxxx"}`
	}
	publish := func(ctx context.Context, q outbox.Querier) error {
		aggregates := make([]uuid.UUID, size)
		for i := range aggregates {
			aggregates[i] = uuid.New()
		}
		var n int
		return q.QueryRow(ctx, `
			WITH inserted AS (
				INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
				SELECT 'order', m.aggregate_id, 'OrderPlaced', m.payload FROM unnest($1::uuid[], $2::jsonb[]) m (aggregate_id, payload)
				RETURNING id
			) SELECT count(*) FROM inserted`, aggregates, payloads).Scan(&n)
	}
	return calls(size, publish)
}

// calls is a way to publish so many events with one call, in a transaction of its own.
func calls(size int, publish func(context.Context, outbox.Querier) error) publishing {
	return publishing{
		prepare: rolledBack(publish),
		once: func(ctx context.Context, conn *pgx.Conn) (int, time.Duration, error) {
			began := time.Now()
			err := publish(ctx, conn)
			return size, time.Since(began), err
		},
	}
}

// rolledBack publishes nothing, so that a session has its statements prepared.
func rolledBack(publish func(context.Context, outbox.Querier) error) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		return errors.Join(publish(ctx, tx), tx.Rollback(ctx))
	}
}

// publishArm collects the slices of one mode.
type publishArm struct {
	mode    migrations.NotifyMode
	how     publishing
	rates   []float64
	commits *histogram
}

func newPublishArm(mode migrations.NotifyMode, how publishing) *publishArm {
	return &publishArm{mode: mode, how: how, commits: newHistogram()}
}

// slice has sessions publish for a time, as fast as they can, while a worker takes every event and does nothing. It ends
// when all is delivered.
func (a *publishArm) slice(ctx context.Context, db *Database, conns []*pgx.Conn, length time.Duration) (err error) {
	if err := db.setNotify(ctx, a.mode); err != nil {
		return err
	}
	var handled atomic.Int64
	w, err := startReadyWorker(ctx, db, func(context.Context, *outbox.Event) error {
		handled.Add(1)
		return nil
	}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := eachSession(conns, func(_ int, conn *pgx.Conn) error { return a.how.prepare(ctx, conn) }); err != nil {
		return err
	}

	var events atomic.Int64
	commits := make([]*histogram, len(conns))
	began := time.Now()
	err = eachSession(conns, func(i int, conn *pgx.Conn) error {
		commits[i] = newHistogram()
		for first := true; first || time.Since(began) < length; first = false {
			n, commit, err := a.how.once(ctx, conn)
			if err != nil {
				return err
			}
			events.Add(int64(n))
			commits[i].record(commit)
		}
		return nil
	})
	took := time.Since(began)
	if err != nil {
		return err
	}
	for _, h := range commits {
		a.commits.merge(h)
	}
	a.rates = append(a.rates, float64(events.Load())/took.Seconds())
	if err := w.idle(ctx, func() bool { return handled.Load() >= events.Load() }); err != nil {
		return fmt.Errorf("%d events were published and %d handled: %w", events.Load(), handled.Load(), err)
	}
	return nil
}

// eachSession does something in all sessions at once.
func eachSession(conns []*pgx.Conn, do func(i int, conn *pgx.Conn) error) error {
	errs := make([]error, len(conns))
	var all sync.WaitGroup
	for i, conn := range conns {
		all.Go(func() { errs[i] = do(i, conn) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (a *publishArm) result() PublishArm {
	return PublishArm{PerSecond: Median(a.rates), Slices: a.rates, Commit: a.commits.summary()}
}

// Median returns the middle of the values, of an even number the mean of the middle two, 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
