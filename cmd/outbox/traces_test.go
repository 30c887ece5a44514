package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// collector is a receiver of OTLP.
type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	mu       sync.Mutex
	spans    map[string][]*tracepb.Span // by name
	services map[string]bool
	requests atomic.Int64
	refuse   atomic.Bool
}

// Export takes spans.
func (c *collector) Export(_ context.Context, r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spans == nil {
		c.spans, c.services = map[string][]*tracepb.Span{}, map[string]bool{}
	}
	for _, resource := range r.GetResourceSpans() {
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				c.services[a.GetValue().GetStringValue()] = true
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans[span.GetName()] = append(c.spans[span.GetName()], span)
			}
		}
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

// ServeHTTP takes spans by HTTP.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.requests.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Path != "/v1/traces" || c.refuse.Load() {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var request coltracepb.ExportTraceServiceRequest
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, &request)
		undoBase64(&request)
	} else {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), &request)
	w.WriteHeader(http.StatusOK)
}

// undoBase64 restores ids, which OTLP writes in hexadecimal and protojson reads as base64.
func undoBase64(r *coltracepb.ExportTraceServiceRequest) {
	restore := func(id *[]byte) { *id, _ = hex.DecodeString(base64.StdEncoding.EncodeToString(*id)) }
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				restore(&span.TraceId)
				restore(&span.SpanId)
				restore(&span.ParentSpanId)
				for _, link := range span.GetLinks() {
					restore(&link.TraceId)
					restore(&link.SpanId)
				}
			}
		}
	}
}

// span returns the one span of a name.
func (c *collector) span(t *testing.T, name string) *tracepb.Span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spans[name]) != 1 {
		t.Fatalf("%d spans named %s of %v", len(c.spans[name]), name, c.spans)
	}
	return c.spans[name][0]
}

// collect starts a receiver and returns its address.
func collect(t *testing.T) (*collector, string) {
	t.Helper()
	c := &collector{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return c, server.URL
}

// publishOf is a command line that publishes one event.
var publishOf = []string{"publish", "--aggregate-type", "invoice", "--aggregate-id", invoice, "--type", "InvoicePaid", "--data", "1"}

// tracedRun starts a worker whose log is an output, and returns once it is ready.
func tracedRun(t *testing.T, db *pgtest.DB, sink string, environ ...string) (*exec.Cmd, *output) {
	t.Helper()
	cmd := process(t, append([]string{"DATABASE_URL=" + db.URL}, environ...), "run", "--sink", sink)
	stderr := begin(t, cmd)
	stderr.waitFor(t, contains(`"ready"`))
	return cmd, stderr
}

// stopped ends a worker in order, and returns how long that took.
func stopped(t *testing.T, cmd *exec.Cmd, stderr *output) time.Duration {
	t.Helper()
	began := time.Now()
	send(t, cmd, syscall.SIGTERM)
	if code := exitCode(t, cmd); code != exitClean {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	return time.Since(began)
}

// TestTracesFromPublishToWebhook follows an event through two processes and a receiver. Nothing but the ends of the processes sends spans.
func TestTracesFromPublishToWebhook(t *testing.T) {
	t.Parallel()
	for name, protocol := range map[string]string{"the default": "", "http/json": "OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "grpc": "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"} {
		t.Run("by "+name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			c, address := collect(t)
			if name == "grpc" {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				coltracepb.RegisterTraceServiceServer(server, c)
				go func() { _ = server.Serve(listener) }()
				t.Cleanup(server.Stop)
				address = "http://" + listener.Addr().String()
			}
			environ := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + address, "OTEL_BSP_SCHEDULE_DELAY=3600000", protocol}

			headers := make(chan http.Header, 1)
			receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { headers <- r.Header }))
			t.Cleanup(receiver.Close)
			worker, log := tracedRun(t, db, receiver.URL, append(environ, "OTEL_SERVICE_NAME=billing-worker")...)
			if !strings.Contains(log.String(), `"traces":true`) {
				t.Errorf("%s", log)
			}

			publish := process(t, append(environ, "DATABASE_URL="+db.URL, "TRACEPARENT=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), publishOf...)
			if out, err := publish.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			sent := <-headers
			stopped(t, worker, log)

			published, delivered := c.span(t, "publish InvoicePaid"), c.span(t, "process InvoicePaid")
			if got := hex.EncodeToString(published.GetParentSpanId()); got != "00f067aa0ba902b7" || published.GetKind() != tracepb.Span_SPAN_KIND_PRODUCER {
				t.Errorf("parent %s, %s", got, published.GetKind())
			}
			links := delivered.GetLinks()
			if len(links) != 1 || !bytes.Equal(links[0].GetSpanId(), published.GetSpanId()) || !bytes.Equal(links[0].GetTraceId(), published.GetTraceId()) ||
				delivered.GetKind() != tracepb.Span_SPAN_KIND_CONSUMER || len(delivered.GetParentSpanId()) > 0 {
				t.Errorf("links %v, %s", links, delivered.GetKind())
			}
			if want := "00-" + hex.EncodeToString(delivered.GetTraceId()) + "-" + hex.EncodeToString(delivered.GetSpanId()); !strings.HasPrefix(sent.Get("traceparent"), want) {
				t.Errorf("the webhook got %q, want %q", sent.Get("traceparent"), want)
			}
			if !c.services["outbox"] || !c.services["billing-worker"] || len(c.services) != 2 {
				t.Errorf("services %v", c.services)
			}
		})
	}
}

func TestTraceParentOfTheCaller(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	stored := func(t *testing.T, stdin, traceParent string, args ...string) string {
		t.Helper()
		o := execute(t, stdin, []string{"DATABASE_URL=" + db.URL, "TRACEPARENT=" + traceParent, "TRACESTATE=a=1"}, args...).succeeds(t)
		return query[string](t, db, "SELECT COALESCE(payload->>'metadata', '') FROM events.outbox WHERE id = $1::text::bigint", strings.TrimSpace(o.stdout))
	}
	const caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	want := `{"tracestate": "a=1", "traceparent": "` + caller + `"}`
	if got := stored(t, "", caller, publishOf...); got != want {
		t.Errorf("one event: %s", got)
	}
	line := `{"aggregate_type": "invoice", "aggregate_id": "` + invoice + `", "type": "InvoicePaid", "data": 1}` + "\n"
	if got := stored(t, line, caller, "publish"); got != want {
		t.Errorf("a line: %s", got)
	}
	if got := stored(t, "", "trace", publishOf...); got != "" {
		t.Errorf("a malformed one: %s", got)
	}
}

func TestCollectorThatIsAway(t *testing.T) {
	t.Parallel()
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + reserved.Addr().String()
	if err := reserved.Close(); err != nil {
		t.Fatal(err)
	}

	t.Run("is logged once, and again when it is back; events are delivered meanwhile", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		c, address := collect(t)
		c.refuse.Store(true)
		cmd, log := tracedRun(t, db, "discard", "OTEL_EXPORTER_OTLP_ENDPOINT="+address, "OTEL_BSP_SCHEDULE_DELAY=10")
		refused := func(n int64) {
			t.Helper()
			pgtest.Eventually(t, func() error {
				insert(t, db, 1)
				if c.requests.Load() < n {
					return context.DeadlineExceeded
				}
				return nil
			})
		}
		refused(3)
		eventually(t, db, 0, "SELECT count(*)::int FROM events.outbox WHERE published_at IS NULL")
		c.refuse.Store(false)
		insert(t, db, 1)
		log.waitFor(t, contains(`"traces_exported_again"`))
		stopped(t, cmd, log)
		if n := strings.Count(log.String(), `"traces_not_exported"`); n != 1 {
			t.Errorf("logged %d times: %s", n, log)
		}
		if n := strings.Count(log.String(), `"level":"error"`); n != 0 {
			t.Errorf("%s", log)
		}
	})
	t.Run("does not hold up the end", func(t *testing.T) {
		t.Parallel()
		hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}))
		t.Cleanup(hanging.Close)
		for _, address := range []string{nobody, hanging.URL} {
			db := pgtest.Database(t)
			cmd, log := tracedRun(t, db, "discard", "OTEL_EXPORTER_OTLP_ENDPOINT="+address, "OTEL_BSP_SCHEDULE_DELAY=10")
			insert(t, db, 10)
			eventually(t, db, 10, published)
			if took := stopped(t, cmd, log); took > flushPatience+10*time.Second {
				t.Errorf("%s: ended after %s", address, took)
			}
			if !strings.Contains(log.String(), "traces_not_exported") {
				t.Errorf("not a word of it: %s", log)
			}
			if strings.Index(log.String(), `"stopped"`) < strings.Index(log.String(), `traces_not_exported`) {
				t.Errorf("said after the end: %s", log)
			}
		}
	})
	t.Run("is one line of publish, which has done its work", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		cmd := process(t, []string{"DATABASE_URL=" + db.URL, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + nobody}, publishOf...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Errorf("%v: %s", err, &stderr)
		}
		if !strings.HasPrefix(stderr.String(), "outbox: traces not exported: ") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s", &stderr)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE payload->'metadata'->>'traceparent' LIKE '00-%'"); n != 1 {
			t.Errorf("%d events have the trace context of the span", n)
		}
	})
}

func TestTracesThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	for name, environ := range map[string][]string{
		"OTEL_SDK_DISABLED":    {"OTEL_SDK_DISABLED=True"},
		"OTEL_TRACES_EXPORTER": {"OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_PROTOCOL=carrier/pigeon"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			c, address := collect(t)
			environ = append(slices.Clone(environ), "OTEL_EXPORTER_OTLP_ENDPOINT="+address)
			if out, err := process(t, append(environ, "DATABASE_URL="+db.URL), publishOf...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			cmd, log := tracedRun(t, db, "discard", environ...)
			eventually(t, db, 1, published)
			stopped(t, cmd, log)
			if n := c.requests.Load(); n != 0 || !strings.Contains(log.String(), `"traces":false`) {
				t.Errorf("%d requests: %s", n, log)
			}
		})
	}
}

// TestWrongTracesVariables has what the SDK would pass over: the first ones are found in the environment, the others by the SDK.
func TestWrongTracesVariables(t *testing.T) {
	t.Parallel()
	const on = "OTEL_TRACES_EXPORTER=otlp"
	run, publish := []string{"run", "--sink", "discard"}, publishOf
	for _, tt := range []struct {
		environ []string
		want    string
	}{
		{[]string{"OTEL_SDK_DISABLED=1"}, `OTEL_SDK_DISABLED: "1" is not one of true, false`},
		{[]string{"OTEL_TRACES_EXPORTER=zipkin"}, `OTEL_TRACES_EXPORTER: "zipkin" is not one of otlp, none`},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=ali:sesame@collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is not an address"},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=collector:4317"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not an address"},
		{[]string{on, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"}, "OTEL_EXPORTER_OTLP_ENDPOINT is not an address"},
		{[]string{on, "OTEL_EXPORTER_OTLP_PROTOCOL=http"}, `OTEL_EXPORTER_OTLP_PROTOCOL: "http" is not one of http/protobuf, http/json, grpc`},
		{[]string{on, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=tcp", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: "tcp" is not`},
		{[]string{on, "OTEL_EXPORTER_OTLP_COMPRESSION=zstd"}, `OTEL_EXPORTER_OTLP_COMPRESSION: "zstd" is not one of gzip, none`},
		{[]string{on, "OTEL_EXPORTER_OTLP_TIMEOUT=10s"}, `OTEL_EXPORTER_OTLP_TIMEOUT: "10s" is not a whole number`},
		{[]string{on, "OTEL_BSP_MAX_QUEUE_SIZE=-1"}, `OTEL_BSP_MAX_QUEUE_SIZE: "-1" is not a whole number from 1`},
		{[]string{on, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=99999999999"}, `OTEL_BSP_MAX_EXPORT_BATCH_SIZE: "99999999999" is not a whole number`},
		{[]string{on, "OTEL_BSP_SCHEDULE_DELAY=never"}, `OTEL_BSP_SCHEDULE_DELAY: "never" is not`},
		{[]string{on, "OTEL_TRACES_SAMPLER=sometimes"}, "OTEL_* variables: unsupported sampler: sometimes"},
		{[]string{on, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=half"}, "OTEL_* variables: "},
		{[]string{on, "OTEL_EXPORTER_OTLP_CERTIFICATE=/nonexistent/ca.pem"}, "OTEL_* variables: read tls ca cert file: open /nonexistent/ca.pem"},
		{[]string{on, "OTEL_EXPORTER_OTLP_HEADERS=sesame"}, "OTEL_* variables: parse headers: missing"},
		{[]string{on, "OTEL_RESOURCE_ATTRIBUTES=region"}, "OTEL_* variables: "},
	} {
		t.Run(tt.environ[len(tt.environ)-1], func(t *testing.T) {
			t.Parallel()
			for _, args := range [][]string{run, publish} {
				cmd := process(t, append([]string{nowhere}, tt.environ...), args...)
				var stdout, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				code := exitCode(t, cmd)
				outcome{code, stdout.String(), stderr.String()}.fails(t, exitUsage, tt.want)
			}
		})
	}
	t.Run("are reported with all that is wrong", func(t *testing.T) {
		t.Parallel()
		execute(t, "", []string{nowhere, on, "OTEL_EXPORTER_OTLP_PROTOCOL=tcp", "OTEL_BSP_EXPORT_TIMEOUT=x"}, "run").
			fails(t, exitUsage, "run needs --sink", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_BSP_EXPORT_TIMEOUT")
	})
}

func TestHowTracesAreWanted(t *testing.T) {
	t.Parallel()
	for variables, want := range map[string]exporting{
		"": {},
		"OTEL_SERVICE_NAME=billing OTEL_TRACES_SAMPLER=always_on": {},
		// By the specification a collector without an address is reached without TLS; the SDK would use it.
		"OTEL_TRACES_EXPORTER=otlp":                                                                       {"http/protobuf", true},
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                                      {"grpc", true},
		"OTEL_EXPORTER_OTLP_ENDPOINT=https://h":                                                           {"http/protobuf", false},
		"OTEL_EXPORTER_OTLP_ENDPOINT=https://h OTEL_EXPORTER_OTLP_PROTOCOL=http/json":                     {"http/json", false},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://h/x OTEL_SDK_DISABLED=false":                           {"http/protobuf", false},
		"OTEL_EXPORTER_OTLP_ENDPOINT=nonsense OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://h":                {"http/protobuf", false},
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=x OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc": {"grpc", true},
	} {
		a := &app{environment: parseEnvironment(strings.Fields(variables))}
		if how, err := a.tracesWanted(); how != want || err != nil {
			t.Errorf("%s: %+v, %v", variables, how, err)
		}
	}
}
