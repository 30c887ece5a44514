package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-9a365b49/outbox"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// gauge is a value that is read when it is scraped.
type gauge[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(T) float64
}

func of[T any](kind prometheus.ValueType, name, help string, value func(T) float64) gauge[T] {
	return gauge[T]{desc(name, help), kind, value}
}

// What the worker knows about itself.
var ofWorker = []gauge[outbox.Health]{
	of(prometheus.GaugeValue, "running", "1 while the worker runs.", func(h outbox.Health) float64 { return is(h.Running) }),
	of(prometheus.GaugeValue, "owner", "1 while this worker fetches events, 0 while it is a standby.", func(h outbox.Health) float64 { return is(h.Owner) }),
	of(prometheus.GaugeValue, "listener_connected", "1 while a session listens.", func(h outbox.Health) float64 { return is(h.Connected) }),
	of(prometheus.GaugeValue, "degraded", "1 while something does not work as it should, mostly notifications: the log and /readyz say what.", func(h outbox.Health) float64 { return is(h.Degraded) }),
	of(prometheus.GaugeValue, "in_flight_events", "Events that were fetched and are not settled.", func(h outbox.Health) float64 { return float64(h.InFlight) }),
	of(prometheus.GaugeValue, "handling_events", "Events that a handler is working on.", func(h outbox.Health) float64 { return float64(h.Handling) }),
	of(prometheus.GaugeValue, "unsettled_events", "Events that were handled and whose outcome waits for the database.", func(h outbox.Health) float64 { return float64(h.Unsettled) }),
	of(prometheus.CounterValue, "listener_reconnects_total", "How often the listener has connected anew.", func(h outbox.Health) float64 { return float64(h.Reconnects) }),
	of(prometheus.CounterValue, "rescued_events_total", "Events that only the sweep found, and a wake should have. It should stay 0.", func(h outbox.Health) float64 { return float64(h.Rescues) }),
	of(prometheus.CounterValue, "not_envelopes_total", "Events whose payload was no envelope, and was delivered whole.", func(h outbox.Health) float64 { return float64(h.NotEnvelopes) }),
}

var lastSweep = desc("last_sweep_timestamp_seconds", "When the owner's last complete sweep ended, in seconds since 1970. The sweep walks all unpublished events again and again, and finds what nothing else does.")

var wakes = desc("wakes_total", "What had the worker look for events.", "kind")

func wakesByKind(h outbox.Health) map[string]int64 {
	w := h.Wakes
	return map[string]int64{
		"notification": w.Notifications, "call": w.Calls, "gate": w.Gates, "look": w.Looks, "poll": w.Polls, "retry": w.Retries, "redrive": w.Redrives,
	}
}

// What the owner has counted in the database.
var ofDatabase = []gauge[sample]{
	of(prometheus.GaugeValue, "pending_events", "Events that are not published and never failed. Counting stops at 100,001.", func(s sample) float64 { return float64(s.Pending) }),
	of(prometheus.GaugeValue, "oldest_pending_age_seconds", "The age, from occurred_at, of the one with the lowest id, as of the counting; 0 without one.", func(s sample) float64 { return s.OldestPendingAge.Seconds() }),
	of(prometheus.GaugeValue, "retrying_events", "Events that failed and are tried again. Counting stops at 100,001.", func(s sample) float64 { return float64(s.Retrying) }),
	of(prometheus.GaugeValue, "due_events", "Those of them whose time has come.", func(s sample) float64 { return float64(s.Due) }),
	of(prometheus.GaugeValue, "dead_events", "Dead letters. Counting stops at 100,001.", func(s sample) float64 { return float64(s.Dead) }),
	of(prometheus.GaugeValue, "notification_queue_usage_ratio", "How full the server's queue of notifications is, from 0 to 1.", func(s sample) float64 { return s.NotifyQueue }),
	of(prometheus.GaugeValue, "sample_timestamp_seconds", "When the owner counted, in seconds since 1970.", func(s sample) float64 { return unixSeconds(s.taken) }),
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.pushed {
		c.Describe(to)
	}
	for _, g := range ofWorker {
		to <- g.desc
	}
	for _, g := range ofDatabase {
		to <- g.desc
	}
	to <- lastSweep
	to <- wakes
}

// Collect implements [prometheus.Collector]. It asks nothing of the database.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.pushed {
		c.Collect(to)
	}
	var h outbox.Health
	var interval time.Duration
	if w := m.worker.Load(); w != nil {
		h, interval = w.Health(), w.SampleInterval()
	}
	for _, g := range ofWorker {
		to <- prometheus.MustNewConstMetric(g.desc, g.kind, g.value(h))
	}
	if !h.LastSweep.IsZero() { // the owner has completed one
		to <- prometheus.MustNewConstMetric(lastSweep, prometheus.GaugeValue, unixSeconds(h.LastSweep))
	}
	for kind, n := range wakesByKind(h) {
		to <- prometheus.MustNewConstMetric(wakes, prometheus.CounterValue, float64(n), kind)
	}
	s := m.sample.Load()
	if s == nil || !h.Owner || time.Since(s.taken) > stale(interval) {
		return // a standby knows nothing of the database, and what an owner knew is of no use
	}
	for _, g := range ofDatabase {
		to <- prometheus.MustNewConstMetric(g.desc, g.kind, g.value(*s))
	}
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// unixSeconds is the Unix time, as Prometheus wants it.
func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
