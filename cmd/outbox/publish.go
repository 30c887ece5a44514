package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-9a365b49/outbox"
)

// messageFlags are the flags that describe the one event of `outbox publish`.
type messageFlags struct {
	aggregateType, aggregateID, eventType, data string
	version                                     number
	correlationID, causationID                  string
}

// messageFlagNames are those flags by the names that errors of the outbox package have for them.
var messageFlagNames = map[string]string{
	"aggregate_type": "aggregate-type",
	"aggregate_id":   "aggregate-id",
	"event_type":     "type",
	"data":           "data",
	"version":        "version",
	"correlation_id": "correlation-id",
	"causation_id":   "causation-id",
}

func newPublishCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "Publish one event, or NDJSON from standard input",
		Long: `Publish one event, or many from standard input, and print their ids, one a line.

Without flags that describe an event, standard input is read: one JSON object a line (NDJSON), with the fields
aggregate_type, aggregate_id, type (or event_type), data, and, where wanted, version, correlation_id and causation_id.
Blank lines are skipped. Lines are published in batches of 500, a transaction each; a slow stream, a second after its
last line. A bad line is reported with its number, and nothing of its batch is published; the message says with
which line to go on.

Where TRACEPARENT is set, or OpenTelemetry's own variables say where traces go, deliveries link to that trace.

Numbers in data keep every digit. The flags that describe an event are not taken from the environment.`,
		Example: `  outbox publish --aggregate-type invoice --aggregate-id 018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091 \
                 --type InvoicePaid --data '{"amount": 4200}'
  outbox publish < events.ndjson
  tail -n +501 events.ndjson | outbox publish          go on from line 501`,
		Args: noArguments,
	}
	var db databaseFlags
	db.add(cmd)
	m := addMessageFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		described := false
		for _, name := range messageFlagNames {
			described = described || cmd.Flags().Changed(name)
		}
		if !described && isTerminal(a.stdin) {
			return usageErrorf("nothing to publish: describe an event by flags, or give NDJSON on standard input (see `outbox publish --help`)")
		}
		addr, addrErr := a.address(cmd, &db)
		how, tracesErr := a.tracesWanted()
		var message outbox.Message
		var messageErr error
		if described {
			message, messageErr = m.message(cmd.Flags())
		}
		if err := errors.Join(addrErr, messageErr, tracesErr); err != nil {
			return err
		}
		spans, err := openTraces(cmd.Context(), how, a.warn)
		if err != nil {
			return err
		}
		defer spans.close()
		ctx := spans.publishing(cmd.Context(), a.environment)
		if !described {
			return addr.explain(a.publishLines(ctx, addr))
		}
		return addr.explain(a.publishOne(ctx, addr, message))
	}
	return cmd
}

func addMessageFlags(flags *pflag.FlagSet) *messageFlags {
	m := &messageFlags{version: 1}
	flags.StringVar(&m.aggregateType, "aggregate-type", "", "what the event is about, for instance invoice")
	flags.StringVar(&m.aggregateID, "aggregate-id", "", "which one: a `UUID`")
	flags.StringVar(&m.eventType, "type", "", "what happened, for instance InvoicePaid; also --event-type")
	flags.StringVar(&m.data, "data", "", "the event itself, as `JSON`")
	flags.Var(&m.version, "version", "the version of the data's schema")
	flags.StringVar(&m.correlationID, "correlation-id", "", "the workflow or request that the event belongs to")
	flags.StringVar(&m.causationID, "causation-id", "", "the public id of the event that caused it")
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "event-type" {
			name = "type"
		}
		return pflag.NormalizedName(name)
	})
	for _, name := range messageFlagNames {
		onlyAsFlags(flags, name)
	}
	return m
}

// publishOne publishes the event that the flags describe.
func (a *app) publishOne(ctx context.Context, addr *address, message outbox.Message) error {
	conn, err := addr.connect(ctx, "publish")
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	// Not interrupted: whether it was committed nobody would know.
	id, err := outbox.Publish(context.WithoutCancel(ctx), conn, message)
	if invalid, ok := errors.AsType[*outbox.InvalidMessageError](err); ok {
		return flagsOf(invalid)
	}
	if err != nil {
		return err
	}
	return a.printf("%d\n", id)
}

func (m *messageFlags) message(flags *pflag.FlagSet) (outbox.Message, error) {
	var missing []string
	for _, name := range []string{"aggregate-type", "aggregate-id", "type", "data"} {
		if !flags.Changed(name) {
			missing = append(missing, "--"+name)
		}
	}
	var errs []error
	if len(missing) > 0 {
		errs = append(errs, usageErrorf("publish: %s missing", strings.Join(missing, ", ")))
	}
	id, err := uuid.Parse(m.aggregateID)
	if err != nil && flags.Changed("aggregate-id") {
		errs = append(errs, usageErrorf("--aggregate-id: %s is not a UUID", quoteValue(m.aggregateID)))
	}
	return outbox.Message{
		AggregateType: m.aggregateType,
		AggregateID:   id,
		EventType:     m.eventType,
		Data:          json.RawMessage(m.data),
		Version:       int(m.version),
		CorrelationID: m.correlationID,
		CausationID:   m.causationID,
	}, errors.Join(errs...)
}

// flagsOf says the same in the words of the command line.
func flagsOf(invalid *outbox.InvalidMessageError) error {
	problems := make([]string, len(invalid.Fields))
	for i, field := range invalid.Fields {
		problems[i] = fmt.Sprintf("--%s %s", messageFlagNames[field.Field], field.Err)
	}
	return usageErrorf("%s", strings.Join(problems, "; "))
}

// publishLines publishes what standard input has.
func (a *app) publishLines(ctx context.Context, addr *address) error {
	conn, err := addr.connect(ctx, "publish")
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	p := &linePublisher{
		publish: func(ctx context.Context, messages []outbox.Message) ([]int64, error) {
			return outbox.PublishBatch(ctx, conn, messages)
		},
		out:  bufio.NewWriter(a.stdout),
		next: 1,
	}
	if isTerminal(a.stderr) {
		p.progress = newProgress(a.stderr, time.Now())
	}
	err = p.run(ctx, newBatches(ctx, a.stdin))
	p.progress.end(p.published, time.Now())
	if err == nil && p.published == 0 {
		fmt.Fprintln(a.stderr, "outbox: nothing was published: standard input had no events")
	}
	return err
}

// linePublisher publishes batches of lines, in order, and keeps account of how far it has come.
type linePublisher struct {
	publish   func(context.Context, []outbox.Message) ([]int64, error)
	out       *bufio.Writer
	progress  *progress // nil: none
	published int
	next      int // the first line that is not published
}

func (p *linePublisher) run(ctx context.Context, b *batches) error {
	for {
		batch, err := b.next(ctx)
		if err != nil {
			return p.stopped(ctx, err)
		}
		if batch == nil {
			return nil
		}
		// Not interrupted: whether a batch that was cut off has been committed nobody would know.
		ids, err := p.publish(context.WithoutCancel(ctx), batch.messages)
		if err != nil {
			return p.stopped(ctx, batch.failed(err))
		}
		p.published += len(ids)
		p.next = batch.last + 1
		if err := p.print(ids); err != nil {
			return p.stopped(ctx, err)
		}
		p.progress.show(p.published, time.Now())
	}
}

func (p *linePublisher) print(ids []int64) error {
	for _, id := range ids {
		_, _ = p.out.Write(strconv.AppendInt(p.out.AvailableBuffer(), id, 10)) // Flush reports it
		_ = p.out.WriteByte('\n')
	}
	return outputError(p.out.Flush())
}

// stopped adds to an error how far the publishing has come, and how to go on.
func (p *linePublisher) stopped(ctx context.Context, err error) error {
	if errors.Is(err, ctx.Err()) {
		err = errors.New("interrupted")
	}
	if p.published == 0 {
		return fmt.Errorf("%w; nothing was published", err)
	}
	were := "were"
	if p.published == 1 {
		were = "was"
	}
	return fmt.Errorf("%w; %s %s published before: go on from line %d", err, events(p.published), were, p.next)
}
