package poller

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/db"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/dispatch"
)

// store writes outcomes through the pool.
type store struct {
	pool        *pgxpool.Pool
	durable     bool                                                    // [Config.DurableMarks]
	onPublished func(ctx context.Context, tx pgx.Tx, ids []int64) error // [Config.OnPublished]
	settled     func(Batch)                                             // [Observer.Settled]
}

// settleTimeout bounds one write. It is long: a disk that flushes slowly is no reason to settle twice.
const settleTimeout = 30 * time.Second

// maxDelay caps a retry delay before SQL sees it, so that now() + delay cannot overflow.
const maxDelay = 10 * 365 * 24 * time.Hour

// settle writes a batch of outcomes in one transaction, in id order.
func (st *store) settle(ctx context.Context, batch []outcome) ([]settlement, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	marks := sortOut(batch)
	began := time.Now()
	retried, err := marks.write(ctx, st)
	if sqlState(err) == cachedPlanChanged {
		retried, err = marks.write(ctx, st)
	}
	if sqlState(err) == readOnlyTransaction {
		st.pool.Reset() // a failover: the pool's connections lead to what is a standby now
	}
	if err != nil {
		err = fmt.Errorf("settle %d events (at most %s): %w", len(batch), settleTimeout, err)
	}
	if st.settled != nil {
		st.settled(Batch{Published: len(marks.published), Retried: len(marks.retries.Ids), Dead: len(marks.dead.Ids), Took: time.Since(began), Err: err})
	}
	if err != nil {
		return nil, err
	}
	return marks.settlements(retried, began), nil
}

// marks is a batch of outcomes, as the arrays that the queries take.
type marks struct {
	batch      []outcome
	published  []int64
	retries    eventsdb.MarkRetryBatchParams
	dead       eventsdb.MarkDeadBatchParams
	deliveries eventsdb.RecordDeliveriesParams
}

func sortOut(batch []outcome) *marks {
	m := &marks{batch: batch}
	for _, o := range batch {
		switch o.result.Kind {
		case dispatch.Published:
			m.published = append(m.published, o.row.id)
			continue
		case dispatch.Retry:
			m.retries.Ids = append(m.retries.Ids, o.row.id)
			m.retries.RetryCounts = append(m.retries.RetryCounts, o.row.retryCount)
			m.retries.LastErrors = append(m.retries.LastErrors, o.result.Error)
			m.retries.DelaysUs = append(m.retries.DelaysUs, min(max(o.result.Delay, 0), maxDelay).Microseconds())
		default:
			m.dead.Ids = append(m.dead.Ids, o.row.id)
			m.dead.RetryCounts = append(m.dead.RetryCounts, o.row.retryCount)
			m.dead.LastErrors = append(m.dead.LastErrors, o.result.Error)
		}
		m.deliver(o.row.id, o.result.Delivered, false)
		m.deliver(o.row.id, o.result.Dead, true)
	}
	return m
}

func (m *marks) deliver(id int64, subscribers []string, dead bool) {
	for _, name := range subscribers {
		m.deliveries.Ids = append(m.deliveries.Ids, id)
		m.deliveries.Subscribers = append(m.deliveries.Subscribers, name)
		m.deliveries.Dead = append(m.deliveries.Dead, dead)
	}
}

// write runs the statements and returns the rows that became retries. Failures are always durable: they are few, and an
// attempt that counts must not be forgotten.
func (m *marks) write(ctx context.Context, st *store) (retried []eventsdb.MarkRetryBatchRow, err error) {
	allPublished := len(m.published) == len(m.batch)
	if allPublished && st.onPublished == nil { // the common case: one statement, one round trip
		return nil, eventsdb.New(db.FreshPlans(st.pool)).MarkPublishedBatch(ctx, eventsdb.MarkPublishedBatchParams{Ids: m.published, Durable: st.durable})
	}
	err = pgx.BeginFunc(ctx, st.pool, func(tx pgx.Tx) (err error) {
		q := eventsdb.New(db.FreshPlans(tx))
		if len(m.published) > 0 {
			durable := st.durable || !allPublished
			if err := q.MarkPublishedBatch(ctx, eventsdb.MarkPublishedBatchParams{Ids: m.published, Durable: durable}); err != nil {
				return err
			}
			if st.onPublished != nil {
				if err := st.onPublished(ctx, tx, m.published); err != nil {
					return &hookError{err}
				}
			}
		}
		if len(m.retries.Ids) > 0 {
			if retried, err = q.MarkRetryBatch(ctx, m.retries); err != nil {
				return err
			}
		}
		if len(m.dead.Ids) > 0 {
			if err := q.MarkDeadBatch(ctx, m.dead); err != nil {
				return err
			}
		}
		if len(m.deliveries.Ids) > 0 {
			return q.RecordDeliveries(ctx, m.deliveries)
		}
		return nil
	})
	return retried, err
}

// settlements reports the batch as committed by a transaction that began then.
func (m *marks) settlements(retried []eventsdb.MarkRetryBatchRow, began time.Time) []settlement {
	at := make(map[int64]pgtype.Timestamptz, len(retried))
	for _, r := range retried {
		at[r.ID] = r.NextRetryAt
	}
	list := make([]settlement, len(m.batch))
	for i, o := range m.batch {
		list[i] = settlement{outcome: o, applied: true}
		if o.result.Kind == dispatch.Retry {
			list[i].retryAt, list[i].applied = at[o.row.id], at[o.row.id].Valid
			list[i].dueAt = began.Add(min(max(o.result.Delay, 0), maxDelay))
		}
	}
	return list
}
