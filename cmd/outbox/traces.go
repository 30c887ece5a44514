package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/spans"
	"github.com/seed-9a365b49/outbox/tracing"
)

const (
	// flushPatience is how long the end of the program waits for the collector to take the last spans.
	flushPatience = 3 * time.Second
	// maxSpans bounds OTEL_BSP_MAX_QUEUE_SIZE and OTEL_BSP_MAX_EXPORT_BATCH_SIZE, whose memory the SDK takes at once.
	maxSpans = 1 << 20
)

// exporting is how traces leave the program.
type exporting struct {
	protocol string // http/protobuf, http/json or grpc; "" where nothing is traced
	local    bool   // no address is given: it is the protocol's port on this machine, without TLS, and not with it as the SDK has it
}

// tracesWanted returns how the environment wants traces to be exported, if it does, or what is wrong with its OTEL_*
// variables: of most mistakes the SDK would make its defaults, without a word.
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
func (a *app) tracesWanted() (exporting, error) {
	env := func(name string) string { return strings.TrimSpace(a.environment[name]) }
	// ofTraces returns a variable of the exporter and its name: the one for traces wins over the one for all signals.
	ofTraces := func(suffix string) (name, value string) {
		if value := env("OTEL_EXPORTER_OTLP_TRACES_" + suffix); value != "" {
			return "OTEL_EXPORTER_OTLP_TRACES_" + suffix, value
		}
		return "OTEL_EXPORTER_OTLP_" + suffix, env("OTEL_EXPORTER_OTLP_" + suffix)
	}
	var errs []error
	oneOf := func(name, value string, allowed ...string) {
		if value != "" && !slices.Contains(allowed, value) {
			errs = append(errs, usageErrorf("%s: %s is not one of %s", name, quoteHarmless(value), strings.Join(allowed, ", ")))
		}
	}
	number := func(name, value string, least, most int) {
		if n, err := strconv.Atoi(value); value != "" && (err != nil || n < least || n > most) {
			errs = append(errs, usageErrorf("%s: %s is not a whole number from %d to %d", name, quoteHarmless(value), least, most))
		}
	}

	disabled, exporter := strings.ToLower(env("OTEL_SDK_DISABLED")), env("OTEL_TRACES_EXPORTER")
	oneOf("OTEL_SDK_DISABLED", disabled, "true", "false")
	oneOf("OTEL_TRACES_EXPORTER", exporter, "otlp", "none")
	endpointName, endpoint := ofTraces("ENDPOINT")
	if errs != nil || disabled == "true" || exporter == "none" || exporter == "" && endpoint == "" {
		return exporting{}, errors.Join(errs...)
	}
	if u, err := url.Parse(endpoint); endpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "") {
		// Not shown: it can have a password.
		errs = append(errs, usageErrorf("%s is not an address that begins with http:// or https://", endpointName))
	}
	protocolName, protocol := ofTraces("PROTOCOL")
	oneOf(protocolName, protocol, "http/protobuf", "http/json", "grpc")
	compressionName, compression := ofTraces("COMPRESSION")
	oneOf(compressionName, compression, "gzip", "none")
	timeoutName, timeout := ofTraces("TIMEOUT")
	for name, value := range map[string]string{
		timeoutName: timeout, "OTEL_BSP_SCHEDULE_DELAY": env("OTEL_BSP_SCHEDULE_DELAY"), "OTEL_BSP_EXPORT_TIMEOUT": env("OTEL_BSP_EXPORT_TIMEOUT"),
	} {
		number(name, value, 0, int(24*time.Hour/time.Millisecond))
	}
	for _, name := range []string{"OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"} {
		number(name, env(name), 1, maxSpans)
	}
	return exporting{protocol: cmp.Or(protocol, "http/protobuf"), local: endpoint == ""}, errors.Join(errs...)
}

// traces is where the program's spans go. nil is nowhere.
type traces struct {
	provider *sdktrace.TracerProvider
	report   func(change string, err error)
}

// openTraces returns where spans go, nil for nowhere. It connects to nobody. report is called once for
// each change: a collector that is away costs spans and nothing else.
//
// What the SDK reads itself comes from the process's environment.
func openTraces(ctx context.Context, how exporting, report func(change string, err error)) (*traces, error) {
	if how.protocol == "" {
		return nil, nil
	}
	complaints := &complaints{}
	otel.SetErrorHandler(complaints)
	otel.SetLogger(logr.New(complaints))
	exporter, exporterErr := how.exporter(ctx)
	attributes, resourceErr := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("outbox"), semconv.ServiceVersion(buildVersion())),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err := errors.Join(exporterErr, resourceErr); err != nil {
		return nil, usageErrorf("OTEL_* variables: %w", err)
	}
	t := &traces{report: report}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(attributes), sdktrace.WithBatcher(&watchedExporter{SpanExporter: exporter, report: report}))
	if err := complaints.passOn(report); err != nil {
		t.close()
		return nil, usageErrorf("OTEL_* variables: %w", err)
	}
	return t, nil
}

func (how exporting) exporter(ctx context.Context) (*otlptrace.Exporter, error) {
	if how.protocol == "grpc" {
		var opts []otlptracegrpc.Option
		if how.local {
			opts = append(opts, otlptracegrpc.WithInsecure())
		}
		return otlptracegrpc.New(ctx, opts...)
	}
	var opts []otlptracehttp.Option
	if how.local {
		opts = append(opts, otlptracehttp.WithInsecure())
	}
	return otlptracehttp.New(ctx, opts...)
}

// middleware returns what traces deliveries.
func (t *traces) middleware() outbox.Middleware {
	if t == nil {
		return nil
	}
	return tracing.Middleware(tracing.WithTracerProvider(t.provider))
}

// publishing returns a context whose published events are traced. They belong to the trace that TRACEPARENT and TRACESTATE tell of,
// as tools that run others set them.
// https://opentelemetry.io/docs/specs/otel/context/env-carriers/
func (t *traces) publishing(ctx context.Context, environment map[string]string) context.Context {
	if caller := spans.Parse(environment["TRACEPARENT"], environment["TRACESTATE"]); caller.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, caller)
	}
	if t == nil {
		return ctx
	}
	return tracing.ContextWithTracerProvider(ctx, t.provider)
}

// close sends the last spans, if the collector takes them in time.
func (t *traces) close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushPatience)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.report("last_traces_not_exported", err)
	}
}

// watchedExporter reports when exporting begins to fail, and when it works again.
type watchedExporter struct {
	sdktrace.SpanExporter
	report func(change string, err error)

	mu      sync.Mutex
	failing bool
}

// ExportSpans returns no error, since it has been reported.
func (e *watchedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil && !e.failing:
		e.report("traces_not_exported", err)
	case err == nil && e.failing:
		e.report("traces_exported_again", nil)
	}
	e.failing = err != nil
	return nil
}

// complaints takes what the SDK has to say: by its error handler, and by its log, of which only the errors count. While the SDK
// is set up, that is what is wrong with its variables.
type complaints struct {
	mu     sync.Mutex
	errs   []error
	last   string
	report func(change string, err error)
}

// passOn returns the complaints so far, and has later ones reported.
func (c *complaints) passOn(report func(change string, err error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report = report
	return errors.Join(c.errs...)
}

// Handle takes an error. One that repeats is reported once.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.report == nil:
		c.errs = append(c.errs, err)
	case c.last != err.Error():
		c.last = err.Error()
		c.report("traces_incomplete", err)
	}
}

// Error is that of a log. The values are left out: a header can be a secret.
func (c *complaints) Error(err error, message string, _ ...any) {
	c.Handle(fmt.Errorf("%s: %w", message, err))
}

// The rest of a log.
func (c *complaints) Init(logr.RuntimeInfo)          {}
func (c *complaints) Enabled(int) bool               { return false }
func (c *complaints) Info(int, string, ...any)       {}
func (c *complaints) WithValues(...any) logr.LogSink { return c }
func (c *complaints) WithName(string) logr.LogSink   { return c }
