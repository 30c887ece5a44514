package poller

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgsession"
)

// session is the owner's dedicated connection. Every fetch runs on it, so that none can succeed without ownership.
type session struct {
	conn      *pgx.Conn
	pid       int32 // of the server's process
	queries   *eventsdb.Queries
	scanner   scanner
	pool      *pgxpool.Pool
	sequence  string
	holdBack  bool
	waiting   func() time.Duration  // for the server's next bytes
	statement atomic.Int64          // counts beginnings and ends of statements: odd while one is under way
	watchdog  *time.Timer           // runs while a statement does
	cause     atomic.Pointer[error] // why the session was given up
	answered  atomic.Int64          // when it last answered, in nanoseconds since the process's epoch
}

const (
	// statementTimeout bounds the wait for the next bytes of an answer, while the server is working on the statement. An answer
	// may take longer in all: an event of many megabytes on a slow network arrives when it arrives.
	statementTimeout = time.Minute
	// silence is how long that wait may be before the server is asked whether it is working on the statement at all.
	silence = time.Second
	// lease is how long after the last answer handlers may still be started: another worker may own the outbox since.
	lease = 5 * time.Second
)

// epoch makes times that survive a change of the wall clock.
var epoch = time.Now()

func newSession(o *owned, cfg *Config) *session {
	s := &session{
		conn: o.conn, pid: o.pid, queries: eventsdb.New(o.conn),
		pool: cfg.Pool, sequence: cfg.Sequence, holdBack: cfg.Ordering == PerAggregate, waiting: pgsession.Waiting(o.conn),
	}
	s.answered.Store(int64(time.Since(epoch)))
	return s
}

// alive reports whether handlers may be started.
func (s *session) alive() bool {
	return time.Since(epoch)-time.Duration(s.answered.Load()) < lease
}

var (
	errSilent = errors.New("the server is not working on the statement, and nothing has arrived for a second: the connection is dead")
	errSlow   = fmt.Errorf("the server has been working on the statement for %s (does something hold a lock on events.outbox?)", statementTimeout)
)

// watch has statements end with ctx, and watches over their answers, until end is called.
func (s *session) watch(ctx context.Context) (end func()) {
	ended, interrupted := make(chan struct{}), make(chan struct{})
	s.watchdog = time.AfterFunc(math.MaxInt64, func() { s.checkServer(ended) })
	stop := context.AfterFunc(ctx, func() {
		s.interrupt()
		close(interrupted)
	})
	return func() {
		s.watchdog.Stop()
		close(ended)
		if !stop() {
			<-interrupted
			_ = s.socket().SetDeadline(time.Time{}) // where it found no statement, the connection is as good as before
		}
	}
}

// ask runs one statement. If the answer is late and the server has no such statement under way, the connection
// is dead although it looks open (a silent network, a stopped proxy): it is closed, and so is the server's end, which
// would otherwise keep the ownership.
//
// The statement is not given ctx, for whose end pgx would start a goroutine each time: watch waits for it once.
func (s *session) ask(ctx context.Context, name string, statement func(context.Context) error) error {
	s.statement.Add(1)
	s.watchdog.Reset(silence + silence/20) // the wait for the answer begins a little later
	err := statement(context.WithoutCancel(ctx))
	s.watchdog.Stop()
	s.statement.Add(1)
	if err != nil {
		if cause := s.cause.Load(); cause != nil {
			err = fmt.Errorf("%w: %w", *cause, err)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	s.answered.Store(int64(time.Since(epoch)))
	return nil
}

// checkServer watches the wait for an answer until the statement is over, or the session is. Where nothing arrives it asks
// through the pool what the server is doing for this session.
func (s *session) checkServer(ended <-chan struct{}) {
	for statement := s.statement.Load(); statement%2 == 1 && s.statement.Load() == statement; {
		ctx, cancel := context.WithTimeout(context.Background(), silence)
		switch waited := s.waiting(); {
		case waited >= statementTimeout:
			s.giveUp(errSlow)
		case waited >= silence:
			state, err := eventsdb.New(s.pool).SessionState(ctx, s.pid)
			if err == nil && (state == "idle" || state == "gone") && s.waiting() >= silence {
				_, _ = eventsdb.New(s.pool).TerminateSession(ctx, s.pid) // at worst the standby's watch does it
				s.giveUp(errSilent)
			}
		}
		select {
		case <-ctx.Done(): // once a silence
		case <-ended:
			cancel()
			return
		}
		cancel()
	}
}

// giveUp makes the statement fail.
func (s *session) giveUp(cause error) {
	s.cause.Store(&cause)
	s.interrupt()
}

// interrupt ends the read that is under way, or the next one. By a deadline, since Close makes pgx dial a cancel request.
func (s *session) interrupt() { _ = s.socket().SetDeadline(epoch) }

func (s *session) socket() net.Conn { return s.conn.PgConn().Conn() }

// page is the result of a fetch.
type page struct {
	below []int64 // unpublished ids in the gaps below the cursor
	rows  []*row
}

// share is how many bytes each row of a page may have. A page of one row takes it whatever its size.
func share(limit, maxBytes int) int64 {
	if limit == 1 {
		return math.MaxInt64
	}
	return int64(maxBytes / limit)
}

// fetch reads a page of new rows after the cursor, of at most so many rows and bytes, and what has appeared in the gaps
// below it. Rows show whether they are blocked only if holdBack says so.
func (s *session) fetch(ctx context.Context, c *cursor, limit, maxBytes int, holdBack bool) (p page, err error) {
	var from, to []int64
	for _, g := range c.gaps() {
		from, to = append(from, g.first), append(to, g.last)
	}
	p.rows, err = s.rows(ctx, "fetch unpublished", c.page.expected(limit), &p.below,
		eventsdb.FetchPage, from, to, share(limit, maxBytes), holdBack, c.position, int64(limit))
	return p, err
}

// fetchNew reads a page like fetch does, where nothing is below the cursor and no event is in retry or dead.
func (s *session) fetchNew(ctx context.Context, c *cursor, limit, maxBytes int) (p page, err error) {
	p.rows, err = s.rows(ctx, "fetch new", c.page.expected(limit), nil, eventsdb.FetchNew, share(limit, maxBytes), c.position, int64(limit))
	return p, err
}

// fetchByID reads late commits.
func (s *session) fetchByID(ctx context.Context, ids []int64, maxBytes int) (rows []*row, err error) {
	return s.rows(ctx, "fetch late commits", len(ids), nil, eventsdb.FetchByID, int64(maxBytes), s.holdBack, ids)
}

// rows runs a fetch, of which about so many rows are expected: see [scanner.read].
func (s *session) rows(ctx context.Context, name string, expected int, below *[]int64, sql string, args ...any) (rows []*row, err error) {
	err = s.ask(ctx, name, func(ctx context.Context) error {
		answer, err := s.conn.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		rows, err = s.scanner.read(answer, expected, below)
		return err
	})
	return rows, err
}

// reloadResult is what the database has for one reload.
type reloadResult struct {
	rows    []*row
	blocked bool
}

// reload reads up to perLane of the lowest rows of each lane.
func (s *session) reload(ctx context.Context, lanes []reload, perLane, maxBytes int) ([]reloadResult, error) {
	params := eventsdb.ReloadLanesParams{MaxBytes: int64(maxBytes), PerLane: int64(perLane), HoldBack: s.holdBack}
	for _, l := range lanes {
		params.AggregateTypes = append(params.AggregateTypes, l.key.Type)
		params.AggregateIds = append(params.AggregateIds, l.key.ID)
		params.FromIds = append(params.FromIds, l.from)
	}
	results := make([]reloadResult, len(lanes))
	err := s.ask(ctx, "reload lanes", func(ctx context.Context) error {
		found, err := s.queries.ReloadLanes(ctx, params)
		for _, f := range found {
			r := &results[f.Lane-1]
			r.blocked = f.Blocked
			r.rows = append(r.rows, &row{
				id: f.ID, aggregate: lanes[f.Lane-1].key, eventType: f.EventType, payload: f.Payload, occurredAt: f.OccurredAt,
				retryCount: f.RetryCount, state: state(f.State), delivered: f.Delivered, dead: f.Dead,
			})
		}
		return err
	})
	return results, err
}

// dueRow is one due retry.
type dueRow struct {
	id        int64
	aggregate aggregate
	at        pgtype.Timestamptz
}

// dueRows is what a look for due retries returns.
type dueRows struct {
	rows   []dueRow
	nextIn time.Duration // until the next one that is not due, if one waits
	waits  bool
	dead   bool // there are dead letters
}

// fetchDue reads due retries after the position of r.
func (s *session) fetchDue(ctx context.Context, r *retries, limit int) (d dueRows, err error) {
	err = s.ask(ctx, "fetch due retries", func(ctx context.Context) error {
		found, err := s.queries.FetchDue(ctx, eventsdb.FetchDueParams{AfterTime: r.afterTime, AfterID: r.afterID, PageSize: int64(limit)})
		for _, f := range found {
			if f.NextRetryAt.Valid {
				d.rows = append(d.rows, dueRow{f.ID, aggregate{f.AggregateType, f.AggregateID}, f.NextRetryAt})
				continue
			}
			d.dead = f.Dead
			if f.NextInUs != nil {
				d.nextIn, d.waits = time.Duration(*f.NextInUs)*time.Microsecond, true
			}
		}
		return err
	})
	return d, err
}

// sweep reads the rows of an id range that could be handled now, or of its first part where many events are there. It says up to where
// it has looked.
func (s *session) sweep(ctx context.Context, after, upTo int64) (rows []eventsdb.SweepSliceRow, reached int64, err error) {
	reached = upTo
	err = s.ask(ctx, "sweep", func(ctx context.Context) error {
		if upTo-after > sweepMostRows {
			reached, err = s.queries.SweepReach(ctx, eventsdb.SweepReachParams{AfterID: after, UpTo: upTo, Most: sweepMostRows})
			if err != nil {
				return err
			}
		}
		rows, err = s.queries.SweepSlice(ctx, eventsdb.SweepSliceParams{AfterID: after, UpTo: reached, HoldBack: s.holdBack})
		return err
	})
	return rows, reached, err
}

// sequence is what a reading of the id sequence returns.
type sequence struct {
	lastValue int64
	holders   []string // transactions that have drawn an id and not ended
	notifying int      // of them, those that wait to announce what they commit
}

// readSequence reads the id sequence.
func (s *session) readSequence(ctx context.Context) (q sequence, err error) {
	err = s.ask(ctx, "read the id sequence", func(ctx context.Context) error {
		found, err := s.queries.ReadSequence(ctx, s.sequence)
		var notifying []string // of any database of the server
		for _, f := range found {
			switch {
			case f.Holder == "":
				q.lastValue = f.LastValue
			case f.Notifying:
				notifying = append(notifying, f.Holder)
			default:
				q.holders = append(q.holders, f.Holder)
			}
		}
		for _, tx := range notifying {
			if slices.Contains(q.holders, tx) {
				q.notifying++
			}
		}
		return err
	})
	return q, err
}
