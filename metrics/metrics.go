// Package metrics shows Prometheus what a worker does. It is a package of its own so that nobody else links its library.
//
//	m := metrics.New()
//	prometheus.MustRegister(m)
//	worker, err := outbox.NewWorker(outbox.Config{DatabaseURL: databaseURL, Observer: m.Observer()})
//
// The owner counts what is in the database every 15 seconds; a scrape asks nothing of it. Metrics of the database are therefore there at the owner only. No
// metric has a label with an aggregate in it. Durations are histograms of both kinds, native and classic.
package metrics

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/poller"
)

// maxTypes is how many event types have a label of their own. Those beyond are "other": a publisher that makes up types must not fill the memory.
const maxTypes = 500

// maxTypeLength is how many bytes of an event type are a label: each of its series, some twenty with the buckets, has a copy.
const maxTypeLength = 200

// otherType is the label of the event types beyond [maxTypes] and [maxTypeLength].
const otherType = "other"

// stale is how long after the last sample the metrics of the database are left out: four samples are missing, and a minute has passed, since a busy
// database may well be late with one.
func stale(interval time.Duration) time.Duration { return max(4*interval, time.Minute) }

// Metrics is a [prometheus.Collector] of one worker. Make one with [New].
type Metrics struct {
	worker atomic.Pointer[outbox.Worker]
	sample atomic.Pointer[sample]
	series sync.Map // label → *series
	types  atomic.Int64

	deliveries     *prometheus.CounterVec
	handler, age   *prometheus.HistogramVec
	settled        *prometheus.CounterVec
	settleBatch    prometheus.Histogram
	settle, fetch  prometheus.Histogram
	settleFailures prometheus.Counter
	sampleFailures prometheus.Counter
	pushed         []prometheus.Collector // all of these
}

// sample is the backlog as the owner last counted it.
type sample struct {
	admin.Backlog
	taken  time.Time     // by this process's clock
	offset time.Duration // of the database's clock from it
}

// label names the series of one subscriber and event type.
type label struct{ eventType, subscriber string }

// series are the metrics of one label: found once, since a handler call has to pay for it.
type series struct {
	results      map[dispatch.Result]prometheus.Counter
	handler, age prometheus.Observer
}

const namespace = "outbox"

// seconds are the classic buckets of durations: 0.1 ms to a quarter of an hour.
var seconds = prometheus.ExponentialBuckets(0.0001, 2.5, 18)

// New returns the metrics of one worker: give [Metrics.Observer] to its configuration.
func New() *Metrics {
	m := &Metrics{}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Namespace: namespace, Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	labels := []string{"event_type", "subscriber"}
	m.deliveries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "deliveries_total",
		Help: "Calls of handlers, by what they came to: delivered, failed, permanent, interrupted, no_handler.",
	}, append(labels, "result"))
	m.handler = prometheus.NewHistogramVec(histogram("handler_duration_seconds", "How long a call of a handler took.", seconds), labels)
	m.age = prometheus.NewHistogramVec(histogram("event_age_at_delivery_seconds",
		"The age of an event when its handler was called, from occurred_at, which is the start of the publishing transaction; by the database's clock.", seconds), labels)
	m.settled = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "settled_events_total", Help: "Events whose outcome was written: published, retry, dead.",
	}, []string{"outcome"})
	m.settleBatch = prometheus.NewHistogram(histogram("settle_batch_events", "How many outcomes one write took.", prometheus.ExponentialBuckets(1, 4, 8)))
	m.settle = prometheus.NewHistogram(histogram("settle_duration_seconds", "How long one write of outcomes took.", seconds))
	m.fetch = prometheus.NewHistogram(histogram("fetch_duration_seconds", "How long one fetch of new events took.", seconds))
	m.settleFailures = counter("settle_failures_total", "Writes of outcomes that failed, and were tried again.")
	m.sampleFailures = counter("sample_failures_total", "Countings of the backlog that failed.")
	m.pushed = []prometheus.Collector{m.deliveries, m.handler, m.age, m.settled, m.settleBatch, m.settle, m.fetch, m.settleFailures, m.sampleFailures}
	for _, outcome := range []string{"published", "retry", "dead"} {
		m.settled.WithLabelValues(outcome) // 0, and not nothing, from the start
	}
	return m
}

// Observer is what the worker's configuration needs: outbox.Config.Observer.
func (m *Metrics) Observer() outbox.Observer {
	return outbox.Observer{
		Attached: func(w *outbox.Worker) { m.worker.Store(w) },
		Called:   m.called,
		Fetched:  func(_ int, took time.Duration) { m.fetch.Observe(took.Seconds()) },
		Settled:  m.wrote,
		Sampled:  m.sampled,
	}
}

func (m *Metrics) called(c dispatch.Call) {
	s := m.of(label{c.Event.Type, c.Subscriber})
	s.results[c.Result].Inc()
	if c.Result == dispatch.ResultNoHandler {
		return
	}
	s.handler.Observe(c.Took.Seconds())
	now := time.Now().Add(-c.Took)
	if sample := m.sample.Load(); sample != nil {
		now = now.Add(sample.offset)
	}
	s.age.Observe(max(0, now.Sub(c.Event.OccurredAt)).Seconds())
}

// of returns the series of a label.
func (m *Metrics) of(l label) *series {
	if s, ok := m.series.Load(l); ok {
		return s.(*series)
	}
	shown := l
	if !m.shows(l) {
		shown.eventType = otherType
		if s, ok := m.series.Load(shown); ok {
			return s.(*series)
		}
	}
	made := &series{
		results: make(map[dispatch.Result]prometheus.Counter),
		handler: m.handler.WithLabelValues(shown.eventType, shown.subscriber),
		age:     m.age.WithLabelValues(shown.eventType, shown.subscriber),
	}
	for _, r := range []dispatch.Result{
		dispatch.ResultDelivered, dispatch.ResultFailed, dispatch.ResultPermanent, dispatch.ResultInterrupted, dispatch.ResultNoHandler,
	} {
		made.results[r] = m.deliveries.WithLabelValues(shown.eventType, shown.subscriber, string(r))
	}
	s, loaded := m.series.LoadOrStore(shown, made)
	if loaded && shown == l { // another call was faster
		m.types.Add(-1)
	}
	return s.(*series)
}

// shows reports whether the event type of a new label is one to show, and counts it.
func (m *Metrics) shows(l label) bool {
	if len(l.eventType) > maxTypeLength {
		return false
	}
	if m.types.Add(1) > maxTypes {
		m.types.Add(-1)
		return false
	}
	return true
}

func (m *Metrics) wrote(b poller.Batch) {
	m.settle.Observe(b.Took.Seconds())
	if b.Err != nil {
		m.settleFailures.Inc()
		return
	}
	m.settleBatch.Observe(float64(b.Published + b.Retried + b.Dead))
	m.settled.WithLabelValues("published").Add(float64(b.Published))
	m.settled.WithLabelValues("retry").Add(float64(b.Retried))
	m.settled.WithLabelValues("dead").Add(float64(b.Dead))
}

func (m *Metrics) sampled(b admin.Backlog, err error) {
	if err != nil {
		m.sampleFailures.Inc()
		return
	}
	now := time.Now()
	m.sample.Store(&sample{Backlog: b, taken: now, offset: b.At.Sub(now)})
}
