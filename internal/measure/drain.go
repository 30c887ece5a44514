package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox"
)

// Drain is a measurement of how fast a backlog is worked off by a handler that does nothing.
type Drain struct {
	Events     int // the backlog
	Aggregates int // which take turns
	Bytes      int // of each event's data
	Repeat     int // how often each arm does it; the medians count. Zero is one
	// Limit is how long making the backlog may take, and each drain; zero: no limit. Rates are of what was done by then.
	Limit time.Duration
}

// Drained is the result of a [Drain].
type Drained struct {
	Events     int `json:"events"`
	Aggregates int `json:"aggregates"`
	Bytes      int `json:"bytes"`
	// Published events were in the table before, and Hindrance kept what they left behind from being removed.
	Published int       `json:"published,omitempty"`
	Hindrance Hindrance `json:"hindrance,omitempty"`
	// Worker, Floor and Free are in events a second. Free is the worker's rate with the same table and no hindrance.
	Worker float64 `json:"worker_per_s"`
	Floor  float64 `json:"floor_per_s"`
	Free   float64 `json:"free_per_s,omitempty"`
}

// Ratio is the worker's rate ÷ the floor's, RatioFree that with the hindrance ÷ that without.
func (d Drained) Ratio() float64     { return Ratio(d.Worker, d.Floor) }
func (d Drained) RatioFree() float64 { return Ratio(d.Worker, d.Free) }

// MarshalJSON adds the ratios.
func (d Drained) MarshalJSON() ([]byte, error) {
	type plain Drained
	return json.Marshal(struct {
		plain
		Ratio     float64 `json:"ratio"`
		RatioFree float64 `json:"ratio_free,omitempty"`
	}{plain(d), d.Ratio(), d.RatioFree()})
}

// Hindrance is what another session does during a drain. Each keeps PostgreSQL from removing the index entries of rows that
// have been published.
type Hindrance string

const (
	// HeldSnapshot is a REPEATABLE READ transaction that stays open, such as a dump or a report.
	HeldSnapshot Hindrance = "held snapshot"
	// OpenWriter is a transaction that has written to another table and stays open.
	OpenWriter Hindrance = "open writer"
)

// drainer works off the backlog of a database and returns how long that took.
type drainer func(ctx context.Context, db *Database, events int, limit time.Duration) (took time.Duration, err error)

// Run measures the floor and the worker, taking turns.
func (d Drain) Run(ctx context.Context, s *Server) (result Drained, err error) {
	db, err := s.CreateDatabase(ctx)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, db.Drop()) }()
	result = Drained{Events: d.Events, Aggregates: d.Aggregates, Bytes: d.Bytes}
	rates, made, err := d.compare(ctx, db, drainBarely, drainByWorker())
	if err != nil {
		return result, err
	}
	result.Floor, result.Worker, result.Events = rates[0], rates[1], made
	return result, nil
}

// compare lets the arms take turns. It returns the median of each arm's rates, and the length of the shortest backlog.
func (d Drain) compare(ctx context.Context, db *Database, arms ...drainer) (medians []float64, events int, err error) {
	all := make([][]float64, len(arms))
	events = d.Events
	for range max(d.Repeat, 1) {
		for i, arm := range arms {
			if err := db.exec(ctx, "TRUNCATE events.outbox CASCADE"); err != nil {
				return nil, 0, err
			}
			rate, made, err := d.once(ctx, db, arm)
			if err != nil {
				return nil, 0, err
			}
			all[i] = append(all[i], rate)
			events = min(events, made)
		}
	}
	for _, rates := range all {
		medians = append(medians, Median(rates))
	}
	return medians, events, nil
}

// OptionDrain is a [Drain] by a worker with an option, and by one without.
type OptionDrain struct {
	Drain
	Option Option
}

// OptionDrained is the result of an [OptionDrain], in events a second.
type OptionDrained struct {
	Option  string  `json:"option"`
	Events  int     `json:"events"`
	Bytes   int     `json:"bytes"`
	With    float64 `json:"with_per_s"`
	Without float64 `json:"without_per_s"`
}

// Ratio is the rate with the option ÷ that without.
func (d OptionDrained) Ratio() float64 { return Ratio(d.With, d.Without) }

// MarshalJSON adds the ratio.
func (d OptionDrained) MarshalJSON() ([]byte, error) {
	type plain OptionDrained
	return json.Marshal(struct {
		plain
		Ratio float64 `json:"ratio"`
	}{plain(d), d.Ratio()})
}

// Run measures both, taking turns.
func (d OptionDrain) Run(ctx context.Context, s *Server) (result OptionDrained, err error) {
	db, err := s.CreateDatabase(ctx)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, db.Drop()) }()
	rates, made, err := d.compare(ctx, db, drainByWorker(), drainByWorker(d.Option))
	if err != nil {
		return result, err
	}
	return OptionDrained{Option: d.Option.Name, Events: made, Bytes: d.Bytes, Without: rates[0], With: rates[1]}, nil
}

// once makes a backlog and has it worked off. It returns the events a second, and the length of the backlog.
func (d Drain) once(ctx context.Context, db *Database, drain drainer) (rate float64, events int, err error) {
	events, err = db.Preload(ctx, Backlog{Events: d.Events, Aggregates: d.Aggregates, Bytes: d.Bytes, Limit: d.Limit})
	if err != nil {
		return 0, 0, err
	}
	before, _, err := db.count(ctx)
	if err != nil {
		return 0, 0, err
	}
	took, err := drain(ctx, db, events, d.Limit)
	if err != nil {
		return 0, 0, err
	}
	after, left, err := db.count(ctx)
	if err != nil {
		return 0, 0, err
	}
	if left > 0 && (d.Limit == 0 || took < d.Limit) {
		return 0, 0, fmt.Errorf("%d events were left unpublished", left)
	}
	return Ratio(float64(after-before), took.Seconds()), events, nil
}

// drainByWorker takes the time from the first event handled until the last one is settled.
func drainByWorker(options ...Option) drainer {
	return func(ctx context.Context, db *Database, events int, limit time.Duration) (time.Duration, error) {
		return drainByWorkerWith(ctx, db, events, limit, options)
	}
}

func drainByWorkerWith(ctx context.Context, db *Database, events int, limit time.Duration, options []Option) (took time.Duration, err error) {
	var handled atomic.Int64
	var began atomic.Pointer[time.Time]
	w, err := startWorker(ctx, db, func(context.Context, *outbox.Event) error {
		if handled.Add(1) == 1 {
			now := time.Now()
			began.Store(&now)
		}
		return nil
	}, nil, options...)
	if err != nil {
		return 0, err
	}
	late := func() bool {
		first := began.Load()
		return limit > 0 && first != nil && time.Since(*first) > limit
	}
	all := func() bool { return handled.Load() >= int64(events) && began.Load() != nil }
	err = w.until(ctx, func() bool { return late() || all() })
	if err == nil && all() {
		err = w.idle(ctx, all)
	} else {
		err = errors.Join(err, w.stop()) // what was handled is settled
	}
	if began.Load() == nil {
		return 0, errors.Join(err, w.stop())
	}
	took = time.Since(*began.Load())
	if n := handled.Load(); err == nil && n > int64(events) {
		err = fmt.Errorf("%d events were handled %d times", events, n)
	}
	return took, errors.Join(err, w.stop())
}

// HinderedDrain is a [Drain] of a table that has many published events, while another session keeps PostgreSQL from cleaning up.
type HinderedDrain struct {
	Drain
	Published int
	Hindrance Hindrance
}

// Run measures the worker and the floor with the hindrance, then the worker without it, on the same table.
func (d HinderedDrain) Run(ctx context.Context, s *Server) (result Drained, err error) {
	result = Drained{
		Events: d.Events, Aggregates: d.Aggregates, Bytes: d.Bytes, Published: d.Published, Hindrance: d.Hindrance,
	}
	db, err := s.CreateDatabase(ctx)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, db.Drop()) }()
	if _, err := db.Preload(ctx, Backlog{Events: d.Published, Aggregates: d.Aggregates, Bytes: d.Bytes}); err != nil {
		return result, err
	}
	hinder, err := d.Hindrance.begin(ctx, db)
	if err != nil {
		return result, err
	}
	defer closeConn(ctx, hinder)
	// Published after the hindrance has begun: their index entries stay.
	if err := db.exec(ctx, "UPDATE events.outbox SET published_at = now() WHERE published_at IS NULL"); err != nil {
		return result, err
	}
	if result.Worker, _, err = d.once(ctx, db, drainByWorker()); err != nil {
		return result, err
	}
	if result.Floor, _, err = d.once(ctx, db, drainBarely); err != nil {
		return result, err
	}
	closeConn(ctx, hinder)
	result.Free, _, err = d.once(ctx, db, drainByWorker())
	return result, err
}

// begin opens the session that is in the way. It ends with its connection.
func (h Hindrance) begin(ctx context.Context, db *Database) (*pgx.Conn, error) {
	statements := []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_catalog.pg_class"}
	if h == OpenWriter {
		statements = []string{"CREATE TABLE unrelated (n int)", "BEGIN", "INSERT INTO unrelated VALUES (1)"}
	}
	conn, err := db.Connect(ctx)
	if err != nil {
		return nil, err
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			closeConn(ctx, conn)
			return nil, fmt.Errorf("begin %s: %w", h, err)
		}
	}
	return conn, nil
}
