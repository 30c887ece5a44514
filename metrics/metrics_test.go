package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/metrics"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// scrape returns what a registry has, as name{label="value",…} → value; of a histogram its count.
func scrape(t *testing.T, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			values[name] = value(family.GetType(), metric)
		}
	}
	return values
}

func value(kind dto.MetricType, m *dto.Metric) float64 {
	switch kind {
	case dto.MetricType_COUNTER:
		return m.GetCounter().GetValue()
	case dto.MetricType_GAUGE:
		return m.GetGauge().GetValue()
	default:
		return float64(m.GetHistogram().GetSampleCount())
	}
}

// start runs a worker with metrics until the test ends.
func start(t *testing.T, db *pgtest.DB, handle outbox.HandlerFunc) *metrics.Metrics {
	t.Helper()
	m := metrics.New()
	observer := m.Observer()
	observer.SampleInterval = 10 * time.Millisecond
	w, err := outbox.NewWorker(outbox.Config{DatabaseURL: db.URL, Observer: observer})
	if err != nil {
		t.Fatal(err)
	}
	w.Subscribe("Placed", "shipping", handle)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-w.Ready()
	return m
}

func publish(t *testing.T, db *pgtest.DB, eventType string) {
	t.Helper()
	_, err := outbox.Publish(t.Context(), db.Pool, outbox.Message{AggregateType: "order", AggregateID: uuid.New(), EventType: eventType})
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for values of a scrape.
func eventually(t *testing.T, m *metrics.Metrics, want map[string]float64) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		got := scrape(t, m)
		for name, n := range want {
			if there, ok := got[name]; !ok || there != n {
				return fmt.Errorf("%s is %v (%t), want %v", name, there, ok, n)
			}
		}
		return nil
	})
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	m := start(t, db, func(_ context.Context, e *outbox.Event) error {
		switch e.ID % 4 {
		case 0:
			return outbox.Permanent(errors.New("never"))
		case 1:
			return errors.New("later")
		}
		return nil
	})
	for range 8 {
		publish(t, db, "Placed")
	}
	publish(t, db, "Unknown")
	eventually(t, m, map[string]float64{
		`outbox_deliveries_total{event_type="Placed",result="delivered",subscriber="shipping"}`: 4,
		`outbox_deliveries_total{event_type="Placed",result="failed",subscriber="shipping"}`:    2,
		`outbox_deliveries_total{event_type="Placed",result="permanent",subscriber="shipping"}`: 2,
		`outbox_deliveries_total{event_type="Unknown",result="no_handler",subscriber=""}`:       1,
		`outbox_handler_duration_seconds{event_type="Placed",subscriber="shipping"}`:            8,
		`outbox_event_age_at_delivery_seconds{event_type="Placed",subscriber="shipping"}`:       8,
		`outbox_settled_events_total{outcome="published"}`:                                      4,
		`outbox_settled_events_total{outcome="retry"}`:                                          3,
		`outbox_settled_events_total{outcome="dead"}`:                                           2,
		"outbox_pending_events":             0,
		"outbox_retrying_events":            3,
		"outbox_due_events":                 0,
		"outbox_dead_events":                2,
		"outbox_oldest_pending_age_seconds": 0,
		"outbox_running":                    1,
		"outbox_owner":                      1,
		"outbox_listener_connected":         1,
		"outbox_degraded":                   0,
		"outbox_rescued_events_total":       0,
		"outbox_settle_failures_total":      0,
		"outbox_sample_failures_total":      0,
		"outbox_unsettled_events":           0,
	})
	got := scrape(t, m)
	for _, name := range []string{
		"outbox_settle_batch_events", "outbox_settle_duration_seconds", "outbox_fetch_duration_seconds", "outbox_sample_timestamp_seconds",
	} {
		if got[name] == 0 {
			t.Errorf("%s is 0", name)
		}
	}
	wakes := 0.0
	for name, n := range got {
		if strings.HasPrefix(name, "outbox_wakes_total{") {
			wakes += n
		}
	}
	if wakes == 0 { // which kind it was is the gate's business
		t.Error("nothing has woken it")
	}
	if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestDocumented has every metric that the documentation speaks of exist.
func TestDocumented(t *testing.T) {
	t.Parallel()
	described := make(chan *prometheus.Desc, 100)
	metrics.New().Describe(described)
	close(described)
	names := map[string]bool{"outbox_build_info": true} // the binary's
	for d := range described {
		names[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	if len(names) < 20 {
		t.Fatalf("only %d names", len(names))
	}
	for _, file := range []string{"../README.md", "../docs/operations.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`[`+"`"+`(](outbox_[a-z_]+)[`+"`"+`{)\[]`).FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s speaks of none", file)
		}
		for _, match := range found {
			if !names[strings.TrimSuffix(match[1], "_count")] { // a histogram's series
				t.Errorf("%s speaks of %s, which does not exist", file, match[1])
			}
		}
	}
}

// TestStandby has two workers: what is in the database is told by one of them.
func TestStandby(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	nothing := func(context.Context, *outbox.Event) error { return nil }
	owner := start(t, db, nothing)
	standby := start(t, db, nothing)
	const swept = "outbox_last_sweep_timestamp_seconds"
	began := float64(time.Now().Unix() - 1)
	pgtest.Eventually(t, func() error {
		if at := scrape(t, owner)[swept]; at < began {
			return fmt.Errorf("the last sweep was at %v", at)
		}
		return nil
	})
	eventually(t, owner, map[string]float64{"outbox_owner": 1, "outbox_pending_events": 0})
	got := scrape(t, standby)
	if _, there := got["outbox_pending_events"]; there || got["outbox_owner"] != 0 || got["outbox_running"] != 1 {
		t.Errorf("%v", got)
	}
	if _, there := got[swept]; there {
		t.Errorf("a standby sweeps: %v", got)
	}
}

// TestTypes has a publisher make up event types.
func TestTypes(t *testing.T) {
	t.Parallel()
	m := metrics.New()
	called := m.Observer().Called
	for i := range 2000 {
		for range 2 {
			called(dispatch.Call{Event: &outbox.Event{Type: fmt.Sprint("type-", i), OccurredAt: time.Now()}, Subscriber: "s", Result: dispatch.ResultDelivered})
		}
	}
	long := strings.Repeat("x", 100_000)
	called(dispatch.Call{Event: &outbox.Event{Type: long, OccurredAt: time.Now()}, Subscriber: "s", Result: dispatch.ResultDelivered})
	fresh := metrics.New()
	fresh.Observer().Called(dispatch.Call{Event: &outbox.Event{Type: long, OccurredAt: time.Now()}, Subscriber: "s", Result: dispatch.ResultDelivered})
	if n := scrape(t, fresh)[`outbox_deliveries_total{event_type="other",result="delivered",subscriber="s"}`]; n != 1 {
		t.Errorf("a type of 100,000 characters: %v", n)
	}
	got := scrape(t, m)
	const series = `outbox_handler_duration_seconds{`
	n := 0
	for name := range got {
		if strings.HasPrefix(name, series) {
			n++
		}
	}
	if n > 501 || got[`outbox_deliveries_total{event_type="other",result="delivered",subscriber="s"}`] != 3001 {
		t.Errorf("%d series; %v of other types", n, got[`outbox_deliveries_total{event_type="other",result="delivered",subscriber="s"}`])
	}
}

// TestClock has the age of an event go by the database's clock.
func TestClock(t *testing.T) {
	t.Parallel()
	m := metrics.New()
	observer := m.Observer()
	observer.Sampled(admin.Backlog{At: time.Now().Add(-time.Hour)}, nil) // this machine's clock is an hour fast
	occurred := time.Now().Add(-time.Hour)
	observer.Called(dispatch.Call{Event: &outbox.Event{Type: "Placed", OccurredAt: occurred}, Subscriber: "s", Result: dispatch.ResultDelivered})
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "outbox_event_age_at_delivery_seconds" })
	if h := families[i].GetMetric()[0].GetHistogram(); h.GetSampleSum() > 60 || h.GetSchema() == 0 && len(h.GetPositiveSpan()) == 0 || len(h.GetBucket()) == 0 {
		t.Errorf("%v", h)
	}
}

func BenchmarkCalled(b *testing.B) {
	called := metrics.New().Observer().Called
	c := dispatch.Call{Event: &outbox.Event{Type: "Placed", OccurredAt: time.Now()}, Subscriber: "s", Result: dispatch.ResultDelivered, Took: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		called(c)
	}
}
