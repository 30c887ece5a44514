package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
	"github.com/seed-9a365b49/outbox/internal/spans"
)

const foreign = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// recording is a tracer provider whose ended spans can be seen.
func recording(t testing.TB, opts ...sdktrace.TracerProviderOption) (*sdktrace.TracerProvider, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(recorder))...), recorder
}

// metadataOf returns what is stored, as far as it is about tracing.
func metadataOf(t *testing.T, db *pgtest.DB, id int64) event.Metadata {
	t.Helper()
	var payload []byte
	if err := db.Pool.QueryRow(t.Context(), "SELECT payload FROM events.outbox WHERE id = $1", id).Scan(&payload); err != nil {
		t.Fatal(err)
	}
	envelope, err := event.ParseEnvelope(payload)
	if err != nil {
		t.Fatal(err)
	}
	return envelope.Metadata
}

func attributesOf(span sdktrace.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

func wantAttributes(t *testing.T, span sdktrace.ReadOnlySpan, want map[string]any) {
	t.Helper()
	got := attributesOf(span)
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %v, want %v", key, got[key], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
}

func TestPublishIsASpan(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	lib, err := sql.Open("pgx", db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lib.Close() })
	first := func(ids []int64, err error) (int64, error) {
		if err != nil {
			return 0, err
		}
		return ids[0], nil
	}
	m := newMessage("Placed")
	for name, publish := range map[string]func(context.Context) (int64, error){
		"Publish":         func(ctx context.Context) (int64, error) { return Publish(ctx, db.Pool, m) },
		"PublishSQL":      func(ctx context.Context) (int64, error) { return PublishSQL(ctx, lib, m) },
		"PublishBatch":    func(ctx context.Context) (int64, error) { return first(PublishBatch(ctx, db.Pool, []Message{m, m})) },
		"PublishBatchSQL": func(ctx context.Context) (int64, error) { return first(PublishBatchSQL(ctx, lib, []Message{m, m})) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider, recorder := recording(t)
			ctx, request := provider.Tracer("service").Start(t.Context(), "request")
			id, err := publish(ctx)
			if err != nil {
				t.Fatal(err)
			}
			ended := recorder.Ended()
			if len(ended) != 1 {
				t.Fatalf("%d spans", len(ended))
			}
			span := ended[0]
			if span.Name() != "publish Placed" || span.SpanKind() != trace.SpanKindProducer || span.Status().Code != codes.Unset ||
				span.Parent().SpanID() != request.SpanContext().SpanID() || len(span.Links()) != 0 ||
				span.InstrumentationScope().Name != spans.Scope {
				t.Errorf("%s, %s, %v, parent %v, links %v, scope %v", span.Name(), span.SpanKind(), span.Status(), span.Parent(), span.Links(), span.InstrumentationScope())
			}
			want := map[string]any{
				"messaging.system": "outbox", "messaging.operation.name": "publish", "messaging.operation.type": "send",
				"messaging.destination.name": "Placed",
			}
			if strings.Contains(name, "Batch") {
				want["messaging.batch.message_count"] = int64(2)
			} else {
				want["outbox.event_id"] = id
			}
			wantAttributes(t, span, want)
			if got := spans.Parse(metadataOf(t, db, id).TraceParent, ""); !got.Equal(span.SpanContext().WithRemote(true)) {
				t.Errorf("stored %v, span %v", got, span.SpanContext())
			}
		})
	}
}

func TestWhichTraceContextIsStored(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	local := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state})
	const localText = "00-01000000000000000000000000000000-0200000000000000-01"
	inHandler := func(ctx context.Context) context.Context {
		return event.NewContext(ctx, &event.Event{Metadata: event.Metadata{TraceParent: foreign, TraceState: "a=1"}})
	}

	t.Run("without a provider", func(t *testing.T) {
		t.Parallel()
		for name, tt := range map[string]struct {
			ctx     func(context.Context) context.Context
			message string
			want    event.Metadata
		}{
			"none": {},
			"of the context's span": {
				ctx:  func(ctx context.Context) context.Context { return trace.ContextWithSpanContext(ctx, local) },
				want: event.Metadata{TraceParent: localText, TraceState: "vendor=1"},
			},
			"of a remote span": {
				ctx:  func(ctx context.Context) context.Context { return trace.ContextWithRemoteSpanContext(ctx, local) },
				want: event.Metadata{TraceParent: localText, TraceState: "vendor=1"},
			},
			"of the event being handled":                    {ctx: inHandler, want: event.Metadata{TraceParent: foreign, TraceState: "a=1"}},
			"of WithTraceParent, which has no tracestate":   {ctx: func(ctx context.Context) context.Context { return event.WithTraceParent(inHandler(ctx), localText) }, want: event.Metadata{TraceParent: localText}},
			"of WithTraceParent, letter by letter":          {ctx: func(ctx context.Context) context.Context { return event.WithTraceParent(ctx, "cc"+foreign[2:]+"-x") }, want: event.Metadata{TraceParent: "cc" + foreign[2:] + "-x"}},
			"of WithTraceParent, though nothing knows it":   {ctx: func(ctx context.Context) context.Context { return event.WithTraceParent(ctx, "trace") }, want: event.Metadata{TraceParent: "trace"}},
			"of the span rather than of the event":          {ctx: func(ctx context.Context) context.Context { return trace.ContextWithSpanContext(inHandler(ctx), local) }, want: event.Metadata{TraceParent: localText, TraceState: "vendor=1"}},
			"of the message rather than of anything":        {message: "mine", ctx: func(ctx context.Context) context.Context { return trace.ContextWithSpanContext(inHandler(ctx), local) }, want: event.Metadata{TraceParent: "mine"}},
			"of the message, without another's tracestate":  {message: foreign, ctx: inHandler, want: event.Metadata{TraceParent: foreign}},
			"none where WithTraceParent has taken it away ": {ctx: func(ctx context.Context) context.Context { return event.WithTraceParent(inHandler(ctx), "") }},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, m := t.Context(), newMessage("Placed")
				if tt.ctx != nil {
					ctx = tt.ctx(ctx)
				}
				m.TraceParent = tt.message
				got := metadataOf(t, db, publish1In(ctx, t, db, m))
				got.CausationID = ""
				if got != tt.want {
					t.Errorf("%+v, want %+v", got, tt.want)
				}
			})
		}
	})
	t.Run("with a provider, the span's", func(t *testing.T) {
		t.Parallel()
		for name, tt := range map[string]struct {
			ctx    func(context.Context) context.Context
			parent trace.TraceID // the zero one: a trace of its own
		}{
			"a root":                   {},
			"a child of a remote span": {func(ctx context.Context) context.Context { return trace.ContextWithRemoteSpanContext(ctx, local) }, local.TraceID()},
			"a child of the trace of the event being handled": {inHandler, spans.Parse(foreign, "").TraceID()},
			"a root where the inherited one is malformed":     {func(ctx context.Context) context.Context { return event.WithTraceParent(ctx, "trace") }, trace.TraceID{}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				provider, recorder := recording(t)
				ctx := spans.WithProvider(t.Context(), provider)
				if tt.ctx != nil {
					ctx = tt.ctx(ctx)
				}
				id := publish1In(ctx, t, db, newMessage("Placed"))
				span := recorder.Ended()[0]
				if span.Parent().TraceID() != tt.parent {
					t.Errorf("parent %v", span.Parent())
				}
				if got := metadataOf(t, db, id); !spans.Parse(got.TraceParent, got.TraceState).Equal(span.SpanContext().WithRemote(true)) {
					t.Errorf("stored %+v, span %v", got, span.SpanContext())
				}
			})
		}
	})
	t.Run("of an unsampled span too, as such", func(t *testing.T) {
		t.Parallel()
		provider, recorder := recording(t, sdktrace.WithSampler(sdktrace.NeverSample()))
		ctx, request := provider.Tracer("service").Start(t.Context(), "request")
		got := metadataOf(t, db, publish1In(ctx, t, db, newMessage("Placed"))).TraceParent
		if sc := spans.Parse(got, ""); sc.TraceID() != request.SpanContext().TraceID() || sc.IsSampled() || len(recorder.Ended()) != 0 {
			t.Errorf("%s, request %v", got, request.SpanContext())
		}
	})
}

func publish1In(ctx context.Context, t *testing.T, db *pgtest.DB, m Message) int64 {
	t.Helper()
	id, err := Publish(ctx, db.Pool, m)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestSpanOfABatch(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	own := func(eventType string) Message {
		m := newMessage(eventType)
		m.TraceParent = foreign
		return m
	}
	for name, tt := range map[string]struct {
		messages []Message
		span     string
		kind     trace.SpanKind
		links    int
	}{
		"of several types has no destination":                     {[]Message{newMessage("Placed"), newMessage("Paid")}, "publish", trace.SpanKindProducer, 0},
		"links to what messages brought":                          {[]Message{newMessage("Placed"), own("Placed")}, "publish Placed", trace.SpanKindProducer, 1},
		"is no producer where all messages brought their context": {[]Message{own("Placed"), own("Placed")}, "publish Placed", trace.SpanKindClient, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider, recorder := recording(t)
			ids, err := PublishBatch(spans.WithProvider(t.Context(), provider), db.Pool, tt.messages)
			if err != nil {
				t.Fatal(err)
			}
			span := recorder.Ended()[0]
			if span.Name() != tt.span || span.SpanKind() != tt.kind || len(span.Links()) != tt.links {
				t.Errorf("%s, %s, %d links", span.Name(), span.SpanKind(), len(span.Links()))
			}
			for _, link := range span.Links() {
				if link.SpanContext.TraceID() != spans.Parse(foreign, "").TraceID() {
					t.Errorf("a link to %v", link.SpanContext)
				}
			}
			for i, id := range ids {
				want, _ := spans.Format(span.SpanContext())
				if tt.messages[i].TraceParent != "" {
					want = foreign
				}
				if got := metadataOf(t, db, id).TraceParent; got != want {
					t.Errorf("message %d has %s, want %s", i, got, want)
				}
			}
		})
	}
}

func TestSpanOfAFailedPublish(t *testing.T) {
	t.Parallel()

	t.Run("has the error once, and its SQLSTATE", func(t *testing.T) {
		t.Parallel()
		db := pgtest.EmptyDatabase(t)
		provider, recorder := recording(t)
		_, err := Publish(spans.WithProvider(t.Context(), provider), db.Pool, newMessage("Placed"))
		if err == nil {
			t.Fatal("no error")
		}
		span := recorder.Ended()[0]
		if span.Status().Code != codes.Error || span.Status().Description != err.Error() || len(span.Events()) != 1 {
			t.Errorf("%+v, %v", span.Status(), span.Events())
		}
		if got := attributesOf(span)["error.type"]; got != "42P01" {
			t.Errorf("error.type %v", got)
		}
	})
	t.Run("is not there where nothing was sent", func(t *testing.T) {
		t.Parallel()
		provider, recorder := recording(t)
		_, err := publish(spans.WithProvider(t.Context(), provider), nil, Message{})
		if !errors.Is(err, ErrInvalidMessage) || len(recorder.Started()) != 0 {
			t.Errorf("%v, %d spans", err, len(recorder.Started()))
		}
	})
	t.Run("ends where the driver panics", func(t *testing.T) {
		t.Parallel()
		provider, recorder := recording(t)
		defer func() {
			if recover() == nil || len(recorder.Ended()) != 1 {
				t.Errorf("%d spans", len(recorder.Ended()))
			}
		}()
		_, _ = publish(spans.WithProvider(t.Context(), provider), nil, newMessage("Placed"))
	})
}

// scanned is the answer to an INSERT.
type scanned struct{}

func (scanned) Scan(dest ...any) error {
	*dest[0].(*int64) = 1
	return nil
}

// BenchmarkPublishWithoutDatabase measures what Publish does around its round trip.
func BenchmarkPublishWithoutDatabase(b *testing.B) {
	m := message()
	m.Data = json.RawMessage(`{"amount": 4200, "currency": "EUR"}`)
	query := func(context.Context, string, ...any) scanner { return scanned{} }
	for name, ctx := range map[string]context.Context{
		"no provider": context.Background(),
		"SDK":         spans.WithProvider(context.Background(), sdktrace.NewTracerProvider()),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := publish(ctx, query, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
