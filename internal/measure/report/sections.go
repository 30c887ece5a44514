package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/measure/chart"
)

func latency(all []measure.Latency) section {
	s := section{
		title: "From commit to handler",
		how: "Idle, woken and polling count from the acknowledgement of the commit; a steady arrival counts from the time that each event was due, " +
			"so queueing and the commit are part of it. The floor is a bare session that is woken the same way and fetches by id.",
		head: []string{"", "p50", "p95", "p99", "p99.9", "max", "floor p50", "floor p99", "p50 ÷ floor", "p99 ÷ floor"},
	}
	for _, l := range all {
		w, f := l.Worker.Figure(), l.Floor.Figure()
		name := latencyName(l)
		var unsent []string
		for _, arm := range []struct {
			name   string
			unsent int
		}{{"worker", l.Worker.Unsent}, {"floor", l.Floor.Unsent}} {
			if arm.unsent > 0 {
				unsent = append(unsent, fmt.Sprintf("%s for the %s", count(float64(arm.unsent)), arm.name))
			}
		}
		if len(unsent) > 0 {
			s.notes = append(s.notes, fmt.Sprintf("%s were more than the server took: it could not commit %s in time.", name, strings.Join(unsent, " and ")))
		}
		s.rows = append(s.rows, []string{
			name, micros(w.P50), micros(w.P95), micros(w.P99), micros(w.P999), micros(w.Max), micros(f.P50), micros(f.P99),
			times(l.RatioP50()), times(l.RatioP99()),
		})
		if l.Name == "idle" {
			s.verdict = fmt.Sprintf("On an idle worker a handler starts %s after the commit (p50); a bare LISTEN and SELECT takes %s here, which makes %s.",
				micros(w.P50), micros(f.P50), times(l.RatioP50()))
		}
	}
	s.chart = latencyChart(all)
	return s
}

func latencyName(l measure.Latency) string {
	switch l.Name {
	case "woken":
		return "woken in the process, idle"
	case "polling":
		return "polling only"
	case "steady":
		return count(l.Rate) + " events/s"
	}
	return l.Name
}

// nines spreads percentiles so that each further nine takes the same space.
func nines(percentile float64) float64 { return -math.Log10(1 - percentile/100) }

func latencyChart(all []measure.Latency) *namedChart {
	c := chart.Lines{
		Title: "Latency by percentile", Description: "How long the given share of events took at most, by the outbox and by the floor.",
		X: chart.Axis{Label: "percentile"}, Y: chart.Axis{Label: "milliseconds", Log: true},
	}
	var most float64
	for _, l := range all {
		if l.Name != "idle" && (l.Name != "steady" || l.Rate < 1000) {
			continue
		}
		for _, arm := range []struct {
			name string
			of   measure.LatencyArm
		}{{"outbox", l.Worker}, {"floor", l.Floor}} {
			series := chart.Series{Name: latencyName(l) + ", " + arm.name}
			for _, p := range arm.of.Figure().Curve {
				series.Points = append(series.Points, chart.Point{X: nines(p.Percentile), Y: p.Micros / 1000})
				most = max(most, p.Percentile)
			}
			c.Series = append(c.Series, series)
		}
	}
	for _, p := range []float64{0, 50, 90, 99, 99.9, 99.99, 99.999} {
		if p <= most || p <= 90 {
			c.X.Ticks = append(c.X.Ticks, chart.Tick{At: nines(p), Label: fmt.Sprint(p)})
		}
	}
	if len(c.Series) == 0 {
		return nil
	}
	return &namedChart{"latency", c}
}

func drain(all []measure.Drained) section {
	s := section{
		title: "Working off a backlog",
		how: "Events a second, until the last is durably marked, with a handler that does nothing. The floor is a loop that fetches pages and two sessions " +
			"that mark them, without order, retries or bounds on memory.",
		head: []string{"bytes", "aggregates", "backlog", "events/s", "floor", "÷ floor"},
	}
	hindered := slices.ContainsFunc(all, func(d measure.Drained) bool { return d.Hindrance != "" })
	if hindered {
		s.how += " A held snapshot or an open writer keeps PostgreSQL from removing what published events left in the indexes."
		s.head = append(s.head, "published before, and open meanwhile", "without that", "÷ without")
	}
	var ratios []float64
	for _, d := range all {
		ratio := d.Ratio()
		row := []string{count(float64(d.Bytes)), count(float64(d.Aggregates)), count(float64(d.Events)), count(d.Worker), count(d.Floor), times(ratio)}
		switch {
		case d.Hindrance != "":
			row = append(row, count(float64(d.Published))+", "+string(d.Hindrance), count(d.Free), times(d.RatioFree()))
		case hindered:
			row = append(row, "", "", "")
		}
		s.rows = append(s.rows, row)
		if d.Hindrance == "" {
			ratios = append(ratios, ratio)
		}
	}
	if len(ratios) > 0 {
		s.verdict = fmt.Sprintf("A backlog is worked off at %s to %s the rate of a bare loop with two sessions that mark: that is what order, lanes and bookkeeping cost.",
			times(slices.Min(ratios)), times(slices.Max(ratios)))
	}
	s.chart = drainChart(all)
	return s
}

// drainChart shows the rate by the length of the backlog, for the payloads and the number of aggregates that have been
// measured with most lengths.
func drainChart(all []measure.Drained) *namedChart {
	type shape struct{ bytes, aggregates int }
	lengths := map[shape]int{}
	for _, d := range all {
		if d.Hindrance == "" {
			lengths[shape{d.Bytes, d.Aggregates}]++
		}
	}
	if len(lengths) == 0 {
		return nil
	}
	c := chart.Lines{
		Title: "Throughput by backlog", Description: "Events a second at which backlogs of different lengths are worked off, by the outbox and by the floor.",
		X: chart.Axis{Label: "events in the backlog", Log: true}, Y: chart.Axis{Label: "events a second"},
	}
	shapes := make([]shape, 0, len(lengths))
	for s := range lengths {
		shapes = append(shapes, s)
	}
	slices.SortFunc(shapes, func(a, b shape) int {
		return cmp.Or(cmp.Compare(lengths[b], lengths[a]), cmp.Compare(a.bytes, b.bytes), cmp.Compare(b.aggregates, a.aggregates))
	})
	const most = 2
	for _, shape := range shapes[:min(most, len(shapes))] {
		worker := chart.Series{Name: fmt.Sprintf("%d bytes, outbox", shape.bytes)}
		floor := chart.Series{Name: fmt.Sprintf("%d bytes, floor", shape.bytes)}
		for _, d := range all {
			if d.Hindrance == "" && d.Bytes == shape.bytes && d.Aggregates == shape.aggregates {
				worker.Points = append(worker.Points, chart.Point{X: float64(d.Events), Y: d.Worker})
				floor.Points = append(floor.Points, chart.Point{X: float64(d.Events), Y: d.Floor})
			}
		}
		for _, series := range []chart.Series{worker, floor} {
			slices.SortFunc(series.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
			c.Series = append(c.Series, series)
		}
	}
	return &namedChart{"drain", c}
}

func publish(all []measure.Published) section {
	s := section{
		title: "What publishers pay",
		how: "Commits a second of sessions that publish one event in each, while a worker delivers them. The floor is a table without notifications and a worker that polls; " +
			"\"always\" is a NOTIFY in every transaction; \"gated\" is the outbox's default, a NOTIFY only while the worker sleeps. Commit times are from COMMIT to its acknowledgement.",
		head: []string{
			"sessions", "gated", "floor", "always", "gated ÷ floor", "gated ÷ always",
			"commit p50", "p99", "p99.9", "floor p50", "floor p99", "always p50", "always p99",
		},
	}
	for _, p := range all {
		s.rows = append(s.rows, []string{
			count(float64(p.Sessions)), count(p.Gated.PerSecond), count(p.Off.PerSecond), count(p.Always.PerSecond),
			times(p.RatioFloor()), times(p.RatioAlways()),
			micros(p.Gated.Commit.P50), micros(p.Gated.Commit.P99), micros(p.Gated.Commit.P999),
			micros(p.Off.Commit.P50), micros(p.Off.Commit.P99), micros(p.Always.Commit.P50), micros(p.Always.Commit.P99),
		})
	}
	if len(all) > 0 {
		busiest := slices.MaxFunc(all, func(a, b measure.Published) int { return cmp.Compare(a.Sessions, b.Sessions) })
		s.verdict = fmt.Sprintf("With %d sessions, publishing through the gate is %s as fast as without notifications, and %s as fast as with a NOTIFY in every transaction.",
			busiest.Sessions, times(busiest.RatioFloor()),
			times(busiest.RatioAlways()))
	}
	s.chart = publishChart(all)
	return s
}

func publishChart(all []measure.Published) *namedChart {
	if len(all) == 0 {
		return nil
	}
	c := chart.Lines{
		Title: "Publisher commits by sessions", Description: "Commits a second of sessions that publish one event in each, by the mode of notifications.",
		X: chart.Axis{Label: "sessions", Log: true}, Y: chart.Axis{Label: "commits a second"},
	}
	gated, off, always := chart.Series{Name: "gated"}, chart.Series{Name: "no notifications (floor)"}, chart.Series{Name: "always NOTIFY"}
	for _, p := range all {
		x := float64(p.Sessions)
		c.X.Ticks = append(c.X.Ticks, chart.Tick{At: x, Label: fmt.Sprint(p.Sessions)})
		gated.Points = append(gated.Points, chart.Point{X: x, Y: p.Gated.PerSecond})
		off.Points = append(off.Points, chart.Point{X: x, Y: p.Off.PerSecond})
		always.Points = append(always.Points, chart.Point{X: x, Y: p.Always.PerSecond})
	}
	c.Series = []chart.Series{gated, off, always}
	return &namedChart{"publish", c}
}

func batches(all []measure.Batched) section {
	s := section{
		title: "Publishing in batches",
		how:   "Events a second of one session that calls PublishBatch. The floor is one INSERT of the same rows from arrays, without checks, envelopes and notifications.",
		head:  []string{"events of a call", "events/s", "floor", "÷ floor"},
	}
	for _, b := range all {
		ratio := b.Ratio()
		s.rows = append(s.rows, []string{count(float64(b.Size)), count(b.Batch), count(b.Floor), times(ratio)})
		s.verdict = fmt.Sprintf("In calls of %d events PublishBatch is %s as fast as a bare INSERT.", b.Size, times(ratio))
	}
	return s
}

func options(all []measure.OptionDrained) section {
	s := section{
		title: "What options of the worker cost",
		how:   "Events a second at which a backlog is worked off with a handler that does nothing: with the option, and without it.",
		head:  []string{"option", "bytes", "backlog", "with", "without", "÷ without"},
	}
	for _, o := range all {
		s.rows = append(s.rows, []string{o.Option, count(float64(o.Bytes)), count(float64(o.Events)), count(o.With), count(o.Without), times(o.Ratio())})
	}
	return s
}

func idle(i *measure.Idled) section {
	if i == nil {
		return section{}
	}
	cpu := "not known here"
	if i.CPU >= 0 {
		cpu = fmt.Sprintf("%.2f %%", 100*i.CPU)
	}
	return section{
		title:   "A worker with nothing to do",
		how:     "Statements that it sends, and the share of one core that its process takes. The floor is nothing at all.",
		verdict: fmt.Sprintf("An idle worker asks the server %.1f times a second.", i.Queries),
		head:    []string{"queries/s", "of a core"},
		rows:    [][]string{{fmt.Sprintf("%.1f", i.Queries), cpu}},
	}
}

func memory(all []measure.Memory) section {
	s := section{
		title: "Memory of a worker with a backlog",
		how:   "The resident size of a worker in a process of its own, in MiB: behind 64 handlers that do not return, and at most, the following drain included.",
		head:  []string{"backlog", "aggregates", "blocked", "at most"},
	}
	for _, m := range all {
		s.rows = append(s.rows, []string{count(float64(m.Events)), count(float64(m.Aggregates)), fmt.Sprintf("%.0f", m.Blocked), fmt.Sprintf("%.0f", m.Peak)})
	}
	return s
}
