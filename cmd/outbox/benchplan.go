package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

const (
	// benchWorkers is how many sessions the workers and floors of a measurement take at most.
	benchWorkers = 24
	// benchPublishers is how many sessions share the events of a steady arrival.
	benchPublishers = 8
)

// benchPlan is what `outbox bench` measures, in order.
type benchPlan []benchPart

// benchPart measures with something that its steps share.
type benchPart struct {
	start func(ctx context.Context) (stop func() error, err error)
	steps []benchStep
}

// benchStep is a measurement that takes its share of the time.
type benchStep struct {
	name    string
	share   float64
	measure func(ctx context.Context, budget time.Duration, results *measure.Results) error
}

// newBenchPlan returns the plan for a server that has room for so many more sessions.
func newBenchPlan(server *measure.Server, free int) (benchPlan, error) {
	if free < benchWorkers+benchPublishers {
		return nil, fmt.Errorf("the server has room for %d more connections, and bench needs %d: end some, or raise max_connections", free, benchWorkers+benchPublishers)
	}
	return benchPlan{latencyPart(server), drainPart(server), publishPart(server, free-benchWorkers), idlePart(server)}, nil
}

func latencyPart(server *measure.Server) benchPart {
	var pair *measure.Pair
	part := benchPart{start: func(ctx context.Context) (stop func() error, err error) {
		if pair, err = measure.StartPair(ctx, server, measure.Notified); err != nil {
			return nil, err
		}
		return pair.Close, nil
	}}
	part.steps = append(part.steps, benchStep{"from commit to handler, idle", 3, func(ctx context.Context, budget time.Duration, results *measure.Results) error {
		l, err := pair.OneByOne(ctx, measure.OneByOne{Events: 2000, Limit: budget})
		results.Latency = append(results.Latency, l)
		return err
	}})
	for _, rate := range []float64{100, 1000, 3000} {
		name := fmt.Sprintf("from commit to handler, %.0f events/s", rate)
		part.steps = append(part.steps, benchStep{name, 3, func(ctx context.Context, budget time.Duration, results *measure.Results) error {
			const slices, arms = 2, 2
			l, err := pair.OpenLoop(ctx, measure.OpenLoop{
				Rate: rate, Publishers: benchPublishers, WarmUp: budget / 20, Slice: budget * 9 / 10 / (slices * arms), Slices: slices,
			})
			results.Latency = append(results.Latency, l)
			return err
		}})
	}
	return part
}

func drainPart(server *measure.Server) benchPart {
	part := benchPart{start: nothingToStart}
	for _, d := range []struct {
		measure.Drain
		share float64
	}{
		{measure.Drain{Events: 10_000, Aggregates: 100_000, Bytes: 20}, 1},
		{measure.Drain{Events: 30_000, Aggregates: 100_000, Bytes: 20}, 2},
		{measure.Drain{Events: 100_000, Aggregates: 100_000, Bytes: 20}, 4},
		{measure.Drain{Events: 30_000, Aggregates: 100_000, Bytes: 800}, 2},
	} {
		name := fmt.Sprintf("working off %d events of %d bytes", d.Events, d.Bytes)
		part.steps = append(part.steps, benchStep{name, d.share, func(ctx context.Context, budget time.Duration, results *measure.Results) error {
			const bounded = 4 // two arms make a backlog and work it off
			d.Limit = budget / bounded
			result, err := d.Run(ctx, server)
			results.Drain = append(results.Drain, result)
			return err
		}})
	}
	return part
}

func publishPart(server *measure.Server, free int) benchPart {
	var publishers *measure.Publishers
	part := benchPart{start: func(ctx context.Context) (stop func() error, err error) {
		if publishers, err = measure.NewPublishers(ctx, server); err != nil {
			return nil, err
		}
		return publishers.Close, nil
	}}
	for _, sessions := range []int{1, 16, 64} {
		if sessions > free {
			continue
		}
		name := fmt.Sprintf("publishing in %d sessions", sessions)
		part.steps = append(part.steps, benchStep{name, 3, func(ctx context.Context, budget time.Duration, results *measure.Results) error {
			const slices, arms = 3, 3
			p, err := publishers.Publish(ctx, measure.Publish{Sessions: sessions, Slice: budget / (slices * arms), Slices: slices})
			results.Publish = append(results.Publish, p)
			return err
		}})
	}
	for _, size := range []int{10, 100} {
		name := fmt.Sprintf("publishing in batches of %d", size)
		part.steps = append(part.steps, benchStep{name, 0.5, func(ctx context.Context, budget time.Duration, results *measure.Results) error {
			const slices, arms = 2, 2
			b, err := publishers.Batches(ctx, measure.Batches{Size: size, Slice: budget / (slices * arms), Slices: slices})
			results.Batch = append(results.Batch, b)
			return err
		}})
	}
	return part
}

func idlePart(server *measure.Server) benchPart {
	return benchPart{start: nothingToStart, steps: []benchStep{{
		"an idle worker", 3, func(ctx context.Context, budget time.Duration, results *measure.Results) error {
			idle, err := measure.IdleWorker{Settle: budget / 4, Window: budget * 3 / 4}.Run(ctx, server)
			results.Idle = &idle
			return err
		},
	}}}
}

func nothingToStart(context.Context) (stop func() error, err error) {
	return func() error { return nil }, nil
}

// run shares the budget out among the steps.
func (p benchPlan) run(ctx context.Context, budget time.Duration, bar *benchBar, results *measure.Results) error {
	var all float64
	for _, part := range p {
		for _, step := range part.steps {
			all += step.share
		}
	}
	done := 0.0
	for _, part := range p {
		err := part.run(ctx, func(step benchStep) error {
			share := step.share / all
			bar.begin(step.name, done, share)
			done += share
			return step.measure(ctx, time.Duration(share*float64(budget)), results)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p benchPart) run(ctx context.Context, do func(benchStep) error) (err error) {
	stop, err := p.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, step := range p.steps {
		if err := do(step); err != nil {
			return fmt.Errorf("measure %s: %w", step.name, err)
		}
	}
	return nil
}
