package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/metrics"
	"github.com/seed-9a365b49/outbox/poller"
	"github.com/seed-9a365b49/outbox/sink"
	"github.com/seed-9a365b49/outbox/sink/cloudevent"
)

const (
	// brokenPatience is how long the worker may take to settle what it has delivered, once standard output is gone.
	brokenPatience = 2 * time.Second
	// settledInterval is how often it is asked whether it has.
	settledInterval = 10 * time.Millisecond
)

// runFlags are the flags of `outbox run`.
type runFlags struct {
	database      databaseFlags
	listenURL     string
	sink          string
	source        string
	secrets       []string
	secretFiles   []string
	batchSize     number
	maxBatchSize  number
	maxBatchBytes size
	concurrency   number
	laneCap       number
	durableMarks  bool
	audit         bool
	timeout       duration
	grace         duration
	maxAttempts   number
	poll          duration
	degradedPoll  duration
	archiveAt     timeOfDay
	archiveZone   timeZone
	retention     duration
	adminAddr     adminAddress
	ordering      *choice
	logLevel      *choice
	logFormat     *choice
}

func newRunCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run --sink stdout|discard|URL",
		Short: "Deliver events as they are committed",
		Long: `Deliver events as they are committed, at least once, in order per aggregate, to a sink:

  stdout     prints each event as one line of JSON (CloudEvents 1.0), and logs to standard error
  URL        posts the same to an http or https address. 2xx means delivered; 408, 425, 429, 5xx and no answer are
             retried, after Retry-After if given; everything else, redirects too, makes a dead letter at once.
             With a secret, requests are signed by Standard Webhooks
  discard    takes everything and does nothing, for measuring

Several replicas of the SAME program can run on one outbox: one works, the others take over when it stops. Two
programs with different sinks on one outbox would take each other's events.

The first SIGINT or SIGTERM stops in order: no new events, handlers finish, what was delivered is marked, exit code 0.
A second one stops at once, with exit code 1; within half a second it counts as the first. Where the reader of standard
output goes away, it ends with exit code 1 too, and what could not be printed stays for the next run.

Deliveries are traced where OTEL_EXPORTER_OTLP_ENDPOINT, or another of OpenTelemetry's variables, says so.`,
		Example: `  outbox run --sink stdout
  outbox run --sink https://example.com/events --webhook-secret-file /run/secrets/webhook
  outbox run --sink stdout --database-url postgres://app@pgbouncer:6432/billing --listen-url postgres://app@db:5432/billing
  OUTBOX_SINK=stdout OUTBOX_LOG_LEVEL=debug outbox run`,
		Args: noArguments,
	}
	f := addRunFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.runWorker(cmd, f) }
	return cmd
}

func addRunFlags(cmd *cobra.Command) *runFlags {
	f := &runFlags{
		batchSize:     poller.DefaultBatchSize,
		maxBatchSize:  poller.DefaultMaxBatchSize,
		maxBatchBytes: poller.DefaultMaxBatchBytes,
		concurrency:   poller.DefaultConcurrency,
		laneCap:       poller.DefaultLaneCap,
		timeout:       duration(dispatch.DefaultTimeout),
		grace:         duration(poller.DefaultShutdownGrace),
		maxAttempts:   dispatch.DefaultMaxAttempts,
		poll:          duration(poller.DefaultPollInterval),
		degradedPoll:  duration(poller.DefaultDegradedPollInterval),
		archiveZone:   "UTC",
		retention:     duration(admin.DefaultRetention),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.sink, "sink", "", "where events go: stdout, discard, or an http:// or https:// `URL`; required")
	f.database.add(cmd)
	flags.StringVar(&f.listenURL, "listen-url", "", "a direct database address (`URL`), where --database-url leads through a transaction pooler")
	flags.StringVar(&f.source, "source", "", "the CloudEvents source of every event, a `URI` or path (default /outbox/<database>)")
	flags.StringArrayVar(&f.secrets, "webhook-secret", nil, "sign requests with this `secret` (whsec_…); several can be given while receivers change theirs. "+
		"Other users of the machine see a flag: the variable or a file is better")
	flags.StringArrayVar(&f.secretFiles, "webhook-secret-file", nil, "a `file` with such secrets, separated by white space")
	flags.Var(&f.batchSize, "batch-size", "rows that a fetch asks for where there is no backlog")
	flags.Var(&f.maxBatchSize, "max-batch-size", "rows that a fetch asks for at most")
	flags.Var(&f.maxBatchBytes, "max-batch-bytes", "payloads of one fetch; four times as much can be in memory")
	flags.Var(&f.concurrency, "concurrency", "events handled at once, each of another aggregate")
	flags.Var(&f.laneCap, "lane-cap", "events of one aggregate that wait in memory")
	flags.BoolVar(&f.durableMarks, "durable-marks", false, "wait for the disk when events are marked as published; else a crash of the server repeats its last fraction of a second")
	flags.Var(&f.timeout, "handler-timeout", "how long delivering one event may take")
	flags.Var(&f.grace, "shutdown-grace", "how long deliveries may go on after the first signal")
	flags.Var(&f.maxAttempts, "max-attempts", "failed attempts that make an event a dead letter")
	flags.Var(&f.poll, "poll-interval", "how often to look without having been woken")
	flags.Var(&f.degradedPoll, "degraded-poll-interval", "the same while notifications do not arrive")
	flags.BoolVar(&f.audit, "audit", false, "copy every event to audit.events as it is marked as published: see outbox audit")
	flags.Var(&f.archiveAt, "archive-at", "delete old events daily at this time, such as 04:00; else it is for outbox archive to do, from cron")
	flags.Var(&f.archiveZone, "archive-zone", "the time zone of --archive-at, such as Europe/Berlin")
	flags.Var(&f.retention, "retention", "what --archive-at deletes was published longer ago than this")
	flags.Var(&f.adminAddr, "admin-addr", "serve /metrics (Prometheus), /livez and /readyz at this address; without a host, such as :9090, for this machine only")
	f.ordering = choiceFlag(cmd, "ordering", "", "per-aggregate", "what a failed event does: hold back its aggregate, or nothing", "per-aggregate", "none")
	f.logLevel = choiceFlag(cmd, "log-level", "", "info", "the least important lines to log", logLevels...)
	f.logFormat = choiceFlag(cmd, "log-format", "", "auto", "auto is console on a terminal, else json", "auto", "json", "console")
	return f
}

func (a *app) runWorker(cmd *cobra.Command, f *runFlags) error {
	addr, addrErr := a.address(cmd, &f.database)
	database := ""
	if addr != nil {
		database = addr.database()
	}
	config, configErr := a.workerConfig(cmd, f, addr)
	to, sinkErr := a.openSink(f, database)
	how, tracesErr := a.tracesWanted()
	if err := errors.Join(addrErr, configErr, sinkErr, tracesErr); err != nil {
		return err
	}
	if webhook, ok := to.(*sink.Webhook); ok {
		defer webhook.CloseIdleConnections()
	}
	var measured *metrics.Metrics
	if f.adminAddr != "" {
		measured = metrics.New()
		config.Observer = measured.Observer()
	}
	worker, err := outbox.NewWorker(config)
	if err != nil {
		return &usageError{err}
	}
	if err := worker.Subscribe(outbox.AnyType, subscriberName(to), to); err != nil {
		return err
	}
	spans, err := openTraces(cmd.Context(), how, func(change string, err error) {
		line := config.Log.Info()
		if err != nil {
			line = config.Log.Warn().Err(err)
		}
		line.Msg(change)
	})
	if err != nil {
		return err
	}
	worker.Use(spans.middleware())
	served, err := serveEndpoints(cmd.Context(), f.adminAddr, worker, measured, config.Log)
	if err != nil {
		return err
	}
	defer served.close()
	ready := func() {
		config.Log.Info().Str("version", buildVersion()).Stringer("sink", to).Bool("signed", signed(f, to)).
			Str("server", addr.server()).Str("database", addr.database()).Bool("traces", spans != nil).Msg("ready")
	}
	err = work(cmd.Context(), worker, to, ready)
	spans.close()
	if err != nil {
		return a.explainRun(err, addr, f)
	}
	config.Log.Info().Msg("stopped")
	return nil
}

// workerConfig is what the flags say to the worker, or everything that is wrong with them. addr is nil where it is itself wrong.
func (a *app) workerConfig(cmd *cobra.Command, f *runFlags, addr *address) (outbox.Config, error) {
	// A limit that was left open gives way to the one that was set.
	given := cmd.Flags().Changed
	if !given("max-batch-size") {
		f.maxBatchSize = max(f.maxBatchSize, f.batchSize)
	}
	if !given("batch-size") {
		f.batchSize = min(f.batchSize, f.maxBatchSize)
	}
	if !given("degraded-poll-interval") {
		f.degradedPoll = min(f.degradedPoll, f.poll)
	}
	var errs []error
	if f.batchSize > f.maxBatchSize {
		errs = append(errs, usageErrorf("%s %s is more than %s %s", a.spelled("batch-size"), &f.batchSize, a.spelled("max-batch-size"), &f.maxBatchSize))
	}
	if f.degradedPoll > f.poll {
		errs = append(errs, usageErrorf("%s %s is longer than %s %s", a.spelled("degraded-poll-interval"), &f.degradedPoll, a.spelled("poll-interval"), &f.poll))
	}
	if f.listenURL != "" {
		if _, err := parseAddress(f.listenURL, a.spelled("listen-url")); err != nil {
			errs = append(errs, err)
		}
	}
	config := outbox.Config{
		ListenURL:            f.listenURL,
		MaxAttempts:          int(f.maxAttempts),
		Concurrency:          int(f.concurrency),
		HandlerTimeout:       time.Duration(f.timeout),
		ShutdownGrace:        time.Duration(f.grace),
		BatchSize:            int(f.batchSize),
		MaxBatchSize:         int(f.maxBatchSize),
		MaxBatchBytes:        int(f.maxBatchBytes),
		LaneCap:              int(f.laneCap),
		DurableMarks:         f.durableMarks,
		Audit:                f.audit,
		PollInterval:         time.Duration(f.poll),
		DegradedPollInterval: time.Duration(f.degradedPoll),
		ArchiveAt:            string(f.archiveAt),
		Log:                  newLogger(a.stderr, f.logLevel.value, f.logFormat.value),
	}
	if f.archiveAt != "" {
		config.ArchiveZone, config.Retention = string(f.archiveZone), time.Duration(f.retention)
	} else if given("archive-zone") || given("retention") {
		errs = append(errs, usageErrorf("%s and %s need --archive-at", a.spelled("archive-zone"), a.spelled("retention")))
	}
	if addr != nil {
		config.DatabaseURL, config.ConnectTimeout = addr.url, addr.patience
	}
	if f.ordering.value == "none" {
		config.Ordering = outbox.NoOrdering
	}
	return config, errors.Join(errs...)
}

// openSink returns the sink, or everything that is wrong with it and the flags that belong to it.
func (a *app) openSink(f *runFlags, database string) (sink.Sink, error) {
	source := cloudevent.DefaultSource(database)
	var errs []error
	if f.source != "" {
		if err := cloudevent.CheckSource(f.source); err != nil {
			errs = append(errs, usageErrorf("%s: %w", a.spelled("source"), err))
		} else {
			source = f.source
		}
	}
	secrets, err := a.readSecrets(f)
	errs = append(errs, err)
	if f.sink == "" {
		return nil, errors.Join(append(errs, usageErrorf("run needs --sink: stdout, discard, or an http:// or https:// address to post to"))...)
	}
	to, err := sink.Parse(f.sink, sink.Options{
		Source: source,
		Stdout: a.stdout,
		Webhook: sink.WebhookConfig{
			Secrets:     secrets,
			Timeout:     time.Duration(f.timeout),
			Concurrency: int(f.concurrency),
			Version:     buildVersion(),
		},
	})
	if err != nil {
		return nil, errors.Join(append(errs, usageErrorf("%s: %w", a.spelled("sink"), err))...)
	}
	return to, errors.Join(append(errs, a.checkSink(f, to))...)
}

// checkSink returns what does not go with the kind of the sink. A secret that is not used, above all, would let somebody
// believe that requests are signed.
func (a *app) checkSink(f *runFlags, to sink.Sink) error {
	var errs []error
	refuse := func(flag, only string) {
		errs = append(errs, usageErrorf("%s is only for %s, and %s is %s", a.spelled(flag), only, a.spelled("sink"), to))
	}
	_, webhook := to.(*sink.Webhook)
	if len(f.secrets) > 0 && !webhook {
		refuse("webhook-secret", "an http:// or https:// sink")
	}
	if len(f.secretFiles) > 0 && !webhook {
		refuse("webhook-secret-file", "an http:// or https:// sink")
	}
	switch to.(type) {
	case *sink.Stdout:
		if isClosed(a.stdout) {
			errs = append(errs, usageErrorf("standard output is closed (or /dev/null opened for reading too), so that events would be marked as published and reach nobody: "+
				"redirect it, or choose --sink discard"))
		}
	case sink.Discard:
		if f.source != "" {
			refuse("source", "a sink that shows it")
		}
	}
	return errors.Join(errs...)
}

// readSecrets returns the webhook's secrets. A flag or file without one is an error: requests would go out unsigned.
func (a *app) readSecrets(f *runFlags) ([]string, error) {
	var secrets []string
	var errs []error
	for _, secret := range f.secrets {
		if strings.TrimSpace(secret) == "" {
			errs = append(errs, usageErrorf("%s is empty", a.spelled("webhook-secret")))
			continue
		}
		secrets = append(secrets, secret)
	}
	for _, name := range f.secretFiles {
		content, err := os.ReadFile(name)
		switch {
		case err != nil:
			errs = append(errs, usageErrorf("%s: %w", a.spelled("webhook-secret-file"), err))
		case strings.TrimSpace(string(content)) == "":
			errs = append(errs, usageErrorf("%s: %s holds no secret", a.spelled("webhook-secret-file"), name))
		default:
			secrets = append(secrets, string(content))
		}
	}
	return secrets, errors.Join(errs...)
}

// signed tells whether requests are signed.
func signed(f *runFlags, to sink.Sink) bool {
	_, webhook := to.(*sink.Webhook)
	return webhook && len(f.secrets)+len(f.secretFiles) > 0
}

// subscriberName is the name under which deliveries of events that failed in part are recorded: it must never change.
func subscriberName(to sink.Sink) string {
	switch to.(type) {
	case *sink.Stdout:
		return "stdout"
	case *sink.Webhook:
		return "webhook"
	default:
		return "discard"
	}
}

// work runs the worker until ctx ends or standard output breaks. It calls ready once the worker is.
func work(ctx context.Context, worker *outbox.Worker, to sink.Sink, ready func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()

	var broken <-chan struct{} // never, for a sink that is not standard output
	stdout, isStdout := to.(*sink.Stdout)
	if isStdout {
		broken = stdout.Closed()
	}
	becameReady := worker.Ready()
	for {
		select {
		case err := <-ended:
			if isStdout && stdout.Err() != nil { // it broke during a graceful stop
				return errors.Join(stdout.Err(), err)
			}
			return err
		case <-becameReady:
			ready()
			becameReady = nil
		case <-broken:
			stop()
			waitUntilSettled(ended, func() int { return worker.Health().Unsettled })
			return fmt.Errorf("standard output is gone, and what was not printed stays for the next run: %w", stdout.Err())
		}
	}
}

// waitUntilSettled waits until the worker has marked what was printed, and not for its end: handlers that wait for standard
// output would sit out the whole grace.
func waitUntilSettled(ended <-chan error, unsettled func() int) {
	tick := time.NewTicker(settledInterval)
	defer tick.Stop()
	patience := time.After(brokenPatience)
	for {
		select {
		case <-tick.C:
			if unsettled() == 0 {
				return
			}
		case <-ended:
			return
		case <-patience:
			return
		}
	}
}

// explainRun says which of the two addresses an error is about.
func (a *app) explainRun(err error, addr *address, f *runFlags) error {
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return addr.explain(explainPrivilege(err, addr.config.ConnConfig.User))
	}
	if f.listenURL == "" || leadsTo(connect.Config, addr) {
		return addr.explain(err)
	}
	listen, parseErr := parseAddress(f.listenURL, a.spelled("listen-url"))
	if parseErr != nil {
		return addr.explain(err)
	}
	return listen.explain(err)
}

// leadsTo tells whether a connection was meant for addr.
func leadsTo(c *pgconn.Config, addr *address) bool {
	main := addr.config.ConnConfig
	return c.Host == main.Host && c.Port == main.Port && c.User == main.User && c.Database == main.Database
}
