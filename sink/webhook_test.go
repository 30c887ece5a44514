package sink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/seed-9a365b49/outbox/dispatch"
	"github.com/seed-9a365b49/outbox/event"
)

// serve starts a receiver.
func serve(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server
}

// newWebhook returns a webhook for cfg, whose source is set here.
func newWebhook(t testing.TB, cfg WebhookConfig) *Webhook {
	t.Helper()
	cfg.Source = source
	w, err := NewWebhook(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.CloseIdleConnections)
	return w
}

// rawServer answers the first request of each connection with answer, byte for byte, and closes
// the connection.
func rawServer(t *testing.T, answer string) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, answer); err != nil {
			t.Error(err)
		}
	}).URL
}

func TestWebhookRequest(t *testing.T) {
	t.Parallel()
	type received struct {
		*http.Request
		body []byte
	}
	// postIn delivers one event and returns what arrived.
	postIn := func(ctx context.Context, t *testing.T, cfg WebhookConfig, e *event.Event) received {
		t.Helper()
		requests := make(chan received, 1)
		server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			requests <- received{r, body}
		})
		cfg.URL = strings.Replace(cfg.URL, "http://receiver", server.URL, 1)
		cfg.URL = strings.Replace(cfg.URL, "@receiver", "@"+server.Listener.Addr().String(), 1)
		if err := newWebhook(t, cfg).Handle(ctx, e); err != nil {
			t.Fatal(err)
		}
		return receive(t, requests, "request")
	}
	post := func(t *testing.T, cfg WebhookConfig, e *event.Event) received {
		t.Helper()
		return postIn(t.Context(), t, cfg, e)
	}

	t.Run("is a POST of the event as CloudEvents JSON", func(t *testing.T) {
		t.Parallel()
		got := post(t, WebhookConfig{URL: "http://receiver/hooks/a%2Fb?tenant=7#part", Version: "1.2.3"}, newEvent(42))
		if got.Method != http.MethodPost || got.RequestURI != "/hooks/a%2Fb?tenant=7" {
			t.Errorf("%s %s", got.Method, got.RequestURI)
		}
		for name, want := range map[string]string{
			"Content-Type": "application/cloudevents+json; charset=utf-8",
			"User-Agent":   "outbox/1.2.3",
		} {
			if v := got.Header.Get(name); v != want {
				t.Errorf("%s: %q, want %q", name, v, want)
			}
		}
		if got.ContentLength != int64(len(got.body)) {
			t.Errorf("Content-Length %d, body of %d bytes", got.ContentLength, len(got.body))
		}
		var e struct {
			ID, OutboxID, Source string
			Data                 json.RawMessage
		}
		if err := json.Unmarshal(got.body, &e); err != nil {
			t.Fatal(err)
		}
		if e.ID != newEvent(42).PublicID.String() || e.OutboxID != "42" || e.Source != source || string(e.Data) != `{"amount": 4200}` {
			t.Errorf("%s", got.body)
		}
	})

	t.Run("has no signature, idempotency key, user or version that nobody asked for", func(t *testing.T) {
		t.Parallel()
		got := post(t, WebhookConfig{URL: "http://receiver"}, newEvent(1))
		for _, name := range []string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Idempotency-Key", "Authorization"} {
			if v, there := got.Header[name]; there {
				t.Errorf("%s: %q", name, v)
			}
		}
		if v := got.UserAgent(); v != "outbox" {
			t.Errorf("User-Agent: %q", v)
		}
	})

	t.Run("belongs to the span of the delivery, and the event to that of its publisher", func(t *testing.T) {
		t.Parallel()
		state, err := trace.ParseTraceState("vendor=1")
		if err != nil {
			t.Fatal(err)
		}
		delivery := trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state,
		})
		e := newEvent(1)
		e.Metadata.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		got := postIn(trace.ContextWithSpanContext(t.Context(), delivery), t, WebhookConfig{URL: "http://receiver"}, e)
		if v := got.Header.Get("traceparent"); v != "00-01000000000000000000000000000000-0200000000000000-01" {
			t.Errorf("traceparent: %q", v)
		}
		if v := got.Header.Get("tracestate"); v != "vendor=1" {
			t.Errorf("tracestate: %q", v)
		}
		if !bytes.Contains(got.body, []byte(`"traceparent":"`+e.Metadata.TraceParent+`"`)) {
			t.Errorf("%s", got.body)
		}
		if got := post(t, WebhookConfig{URL: "http://receiver"}, e); got.Header.Get("traceparent") != "" {
			t.Error("without a span there is a header")
		}
	})

	t.Run("is signed with every secret, over the bytes that were sent", func(t *testing.T) {
		t.Parallel()
		got := post(t, WebhookConfig{URL: "http://receiver", Secrets: []string{oldSecret, newSecret}}, newEvent(1))
		for _, secret := range []string{oldSecret, newSecret} {
			if err := verifier(t, secret).Verify(got.body, got.Header); err != nil {
				t.Error(err)
			}
		}
		if id := got.Header.Get("webhook-id"); id != newEvent(1).PublicID.String() {
			t.Errorf("webhook-id: %q", id)
		}
	})

	t.Run("has the credentials of the address as basic authentication", func(t *testing.T) {
		t.Parallel()
		got := post(t, WebhookConfig{URL: "http://ann:s%40cret@receiver/"}, newEvent(1))
		if user, password, ok := got.BasicAuth(); !ok || user != "ann" || password != "s@cret" {
			t.Errorf("%q %q %v", user, password, ok)
		}
	})
}

func TestWebhookOutcome(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status int
		header map[string]string
		want   dispatch.Kind
		delay  time.Duration // of a retry; 0 means the ladder's
	}{
		{status: 200, want: dispatch.Published},
		{status: 201, want: dispatch.Published},
		{status: 202, want: dispatch.Published},
		{status: 204, want: dispatch.Published},
		{status: 299, want: dispatch.Published},

		{status: 300, want: dispatch.Dead},
		{status: 301, want: dispatch.Dead},
		{status: 302, want: dispatch.Dead},
		{status: 303, want: dispatch.Dead},
		{status: 304, want: dispatch.Dead},
		{status: 307, want: dispatch.Dead},
		{status: 308, want: dispatch.Dead},

		{status: 400, want: dispatch.Dead},
		{status: 401, want: dispatch.Dead},
		{status: 403, want: dispatch.Dead},
		{status: 404, want: dispatch.Dead},
		{status: 409, want: dispatch.Dead},
		{status: 410, want: dispatch.Dead},
		{status: 413, want: dispatch.Dead},
		{status: 422, want: dispatch.Dead},
		{status: 499, want: dispatch.Dead},
		{status: 400, header: map[string]string{"Retry-After": "5"}, want: dispatch.Dead},

		{status: 408, want: dispatch.Retry},
		{status: 425, want: dispatch.Retry},
		{status: 429, want: dispatch.Retry},
		{status: 500, want: dispatch.Retry},
		{status: 501, want: dispatch.Retry},
		{status: 502, want: dispatch.Retry},
		{status: 503, want: dispatch.Retry},
		{status: 504, want: dispatch.Retry},
		{status: 599, want: dispatch.Retry},
		{status: 799, want: dispatch.Retry},

		{status: 429, header: map[string]string{"Retry-After": "5"}, want: dispatch.Retry, delay: 5 * time.Second},
		{status: 503, header: map[string]string{"Retry-After": "90"}, want: dispatch.Retry, delay: 90 * time.Second},
		{status: 408, header: map[string]string{"Retry-After": "5"}, want: dispatch.Retry, delay: 5 * time.Second},
		{status: 429, header: map[string]string{"Retry-After": "999999999"}, want: dispatch.Retry, delay: 24 * time.Hour},
		{status: 429, header: map[string]string{"Retry-After": "0"}, want: dispatch.Retry},
		{status: 429, header: map[string]string{"Retry-After": "soon"}, want: dispatch.Retry},
		{
			status: 503, want: dispatch.Retry, delay: 2 * time.Minute,
			header: map[string]string{"Date": "Sun, 09 Mar 2025 12:00:00 GMT", "Retry-After": "Sun, 09 Mar 2025 12:02:00 GMT"},
		},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("of %d %v is %s", tt.status, tt.header, tt.want), func(t *testing.T) {
			t.Parallel()
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				for name, value := range tt.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(tt.status)
			})
			got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: server.URL}), newEvent(1))
			if got.Kind != tt.want {
				t.Fatalf("%s: %s", got.Kind, got.Error)
			}
			if got.Kind == dispatch.Published {
				return
			}
			if want := fmt.Sprintf("post to %s: answered %d", server.URL, tt.status); !strings.Contains(got.Error, want) {
				t.Errorf("error %q does not contain %q", got.Error, want)
			}
			want := tt.delay
			if want == 0 {
				want = ladderStep
			}
			if got.Kind == dispatch.Retry && got.Delay != want {
				t.Errorf("delay %s, want %s", got.Delay, want)
			}
		})
	}

	raw := []struct{ name, answer, wantError string }{
		{"no answer before the connection closes", "", "post to http"},
		{"a header cut off", "HTTP/1.1 200 OK\r\nContent-", "post to http"},
		{"something that is not HTTP", "SSH-2.0-OpenSSH_9.2\r\n", "malformed HTTP"},
		{"a header that is too large", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 65<<10) + "\r\n\r\n", "post to http"},
		{"an error whose body is cut off", "HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nout of cheese", "500 Internal Server Error: out of cheese"},
	}
	for _, tt := range raw {
		t.Run("of "+tt.name+" is retry", func(t *testing.T) {
			t.Parallel()
			got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: rawServer(t, tt.answer)}), newEvent(1))
			if got.Kind != dispatch.Retry || !strings.Contains(got.Error, tt.wantError) {
				t.Errorf("%s: %s", got.Kind, got.Error)
			}
		})
	}

	t.Run("of 2xx whose body is cut off is published: the receiver has the event", func(t *testing.T) {
		t.Parallel()
		address := rawServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
		if got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: address}), newEvent(1)); got.Kind != dispatch.Published {
			t.Errorf("%s: %s", got.Kind, got.Error)
		}
	})

	t.Run("of 2xx whose body does not end is published, long before the timeout", func(t *testing.T) {
		t.Parallel()
		server := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done() // the sink hangs up
		})
		w := newWebhook(t, WebhookConfig{URL: server.URL, Timeout: time.Hour})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		errs := make(chan error, 1)
		go func() { errs <- w.Handle(ctx, newEvent(1)) }()
		if err := receive(t, errs, "return of Handle"); err != nil {
			t.Error(err)
		}
	})

	t.Run("of 101 is dead, and the connection is closed", func(t *testing.T) {
		t.Parallel()
		closed := make(chan error, 1)
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"); err != nil {
				t.Error(err)
			}
			_, err = io.Copy(io.Discard, conn)
			closed <- err
		})
		got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: server.URL}), newEvent(1))
		if got.Kind != dispatch.Dead || !strings.Contains(got.Error, "answered 101 Switching Protocols") {
			t.Errorf("%s: %s", got.Kind, got.Error)
		}
		if err := receive(t, closed, "end of the connection"); err != nil {
			t.Error(err)
		}
	})

	t.Run("after a provisional answer is that of the final one", func(t *testing.T) {
		t.Parallel()
		address := rawServer(t, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		if got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: address}), newEvent(1)); got.Kind != dispatch.Published {
			t.Errorf("%s: %s", got.Kind, got.Error)
		}
	})

	t.Run("of a refused connection is retry", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.NotFoundHandler())
		server.Close()
		got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: server.URL}), newEvent(1))
		if got.Kind != dispatch.Retry || !strings.Contains(got.Error, "connection refused") {
			t.Errorf("%s: %s", got.Kind, got.Error)
		}
	})

	t.Run("of a certificate that nobody vouches for is retry", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // it would report the handshake
		server.StartTLS()
		t.Cleanup(server.Close)
		got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: server.URL}), newEvent(1))
		if got.Kind != dispatch.Retry || !strings.Contains(got.Error, "certificate") {
			t.Errorf("%s: %s", got.Kind, got.Error)
		}
	})
}

func TestWebhookRedirect(t *testing.T) {
	t.Parallel()
	const advice = "; redirects are not followed, so the sink must have the final address"
	for _, tt := range []struct {
		name           string
		status         int
		location, want string // how the error ends
	}{
		{"to another host is not followed, and the error says so", 308, "https://new.example.com/hooks?token=s3cret", "answered 308 Permanent Redirect to https://new.example.com/hooks" + advice},
		{"to another path is not followed, and the error says so", 302, "/v2/hooks", "/v2/hooks" + advice},
		{"without a location leads nowhere", 308, "", "answered 308 Permanent Redirect"},
		{"to something malformed leads nowhere", 308, "http://ann:s3 cret@[", "answered 308 Permanent Redirect"},
		{"is what 304 is not, with a location or not", 304, "/hooks", "answered 304 Not Modified"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				if tt.location != "" {
					w.Header().Set("Location", tt.location)
				}
				w.WriteHeader(tt.status)
			})
			got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: server.URL}), newEvent(1))
			if got.Kind != dispatch.Dead || !strings.HasSuffix(got.Error, tt.want) || strings.Contains(got.Error, "s3") {
				t.Errorf("%s: %s", got.Kind, got.Error)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestWebhookThatHangs(t *testing.T) {
	t.Parallel()
	// hang returns a receiver that never answers, and a channel that tells of each request.
	hang := func(t *testing.T) (string, <-chan struct{}) {
		arrived := make(chan struct{}, 1)
		server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			arrived <- struct{}{}
			<-r.Context().Done()
		})
		return server.URL, arrived
	}

	t.Run("is given up when the context ends, with the context's error", func(t *testing.T) {
		t.Parallel()
		address, arrived := hang(t)
		w := newWebhook(t, WebhookConfig{URL: address})
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() { errs <- w.Handle(ctx, newEvent(1)) }()
		receive(t, arrived, "request")
		cancel()
		if err := receive(t, errs, "return of Handle"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("leaves the event untouched at shutdown", func(t *testing.T) {
		t.Parallel()
		address, arrived := hang(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		if got := outcome(ctx, t, newWebhook(t, WebhookConfig{URL: address}), newEvent(1)); got.Kind != dispatch.Untouched {
			t.Errorf("%s: %s", got.Kind, got.Error)
		}
	})

	t.Run("is given up at the context's deadline", func(t *testing.T) {
		t.Parallel()
		address, _ := hang(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := newWebhook(t, WebhookConfig{URL: address}).Handle(ctx, newEvent(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("is given up after the configured timeout, to be retried", func(t *testing.T) {
		t.Parallel()
		address, _ := hang(t)
		got := outcome(t.Context(), t, newWebhook(t, WebhookConfig{URL: address, Timeout: 50 * time.Millisecond}), newEvent(1))
		if got.Kind != dispatch.Retry || !strings.Contains(got.Error, "no answer within 50ms") {
			t.Errorf("%s: %s", got.Kind, got.Error)
		}
	})
}

func TestWebhookErrorText(t *testing.T) {
	t.Parallel()

	t.Run("has the beginning of the answer on one line", func(t *testing.T) {
		t.Parallel()
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, "\n\nunknown\x00 plan:\r\n  \"gold\" ", strings.Repeat("결", 1000))
		})
		err := newWebhook(t, WebhookConfig{URL: server.URL}).Handle(t.Context(), newEvent(1))
		if err == nil {
			t.Fatal("no error")
		}
		prefix := fmt.Sprintf("post to %s: answered 422 Unprocessable Entity: ", server.URL)
		reason, found := strings.CutPrefix(err.Error(), prefix)
		if !found || !strings.HasPrefix(reason, `unknown plan: "gold" 결`) || !strings.HasSuffix(reason, "결…") || len(reason) > maxReason {
			t.Errorf("got %q", err)
		}
	})

	t.Run("never has the credentials or the query of the address", func(t *testing.T) {
		t.Parallel()
		closed := httptest.NewServer(http.NotFoundHandler())
		closed.Close()
		for name, base := range map[string]string{
			"refused":   closed.URL,
			"not found": serve(t, http.NotFound).URL,
			"garbage":   rawServer(t, "garbage\r\n\r\n"),
		} {
			address := strings.Replace(base, "http://", "http://4nn:s3cret@", 1) + "/hooks?token=t0ken"
			w := newWebhook(t, WebhookConfig{URL: address})
			err := w.Handle(t.Context(), newEvent(1))
			if err == nil {
				t.Fatalf("%s: no error", name)
			}
			for _, text := range []string{err.Error(), w.String()} {
				if strings.Contains(text, "4nn") || strings.Contains(text, "s3cret") || strings.Contains(text, "t0ken") {
					t.Errorf("%s: %s", name, text)
				}
				if !strings.Contains(text, "/hooks") {
					t.Errorf("%s: does not name the path: %s", name, text)
				}
			}
		}
	})
}

// transportFunc is a transport of the embedding program's own.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWebhookConnections(t *testing.T) {
	t.Parallel()

	t.Run("are kept for as many requests as run at the same time", func(t *testing.T) {
		t.Parallel()
		const concurrency = 16
		var opened atomic.Int32
		gate := make(chan chan struct{}, concurrency)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			wait := make(chan struct{})
			gate <- wait
			<-wait
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, strings.Repeat("x", 10_000)) // reused only if it is read to its end
		}))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
		server.Start()
		t.Cleanup(server.Close)
		w := newWebhook(t, WebhookConfig{URL: server.URL, Concurrency: concurrency})

		for round := range 3 {
			var wg sync.WaitGroup
			for id := range int64(concurrency) {
				wg.Go(func() {
					if err := w.Handle(t.Context(), newEvent(id)); err == nil {
						t.Error("no error")
					}
				})
			}
			var waiting []chan struct{}
			for range concurrency {
				waiting = append(waiting, receive(t, gate, "request"))
			}
			for _, wait := range waiting {
				close(wait)
			}
			wg.Wait()
			if n := opened.Load(); n != concurrency {
				t.Fatalf("%d connections after round %d, want %d", n, round+1, concurrency)
			}
		}
	})

	t.Run("that the receiver closes while an event is under way cost no attempt", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		requests := make(chan []byte, 3)
		done := make(chan error, 1)
		go func() { done <- closeOnSecondRequest(listener, requests) }()

		w := newWebhook(t, WebhookConfig{URL: "http://" + listener.Addr().String()})
		for id := range int64(2) {
			if err := w.Handle(t.Context(), newEvent(id)); err != nil {
				t.Fatalf("event %d: %v", id, err)
			}
		}
		receive(t, requests, "first event")
		if lost, again := receive(t, requests, "second event"), receive(t, requests, "second event again"); !bytes.Equal(lost, again) {
			t.Errorf("sent\n%s\nand then\n%s", lost, again)
		}
		w.CloseIdleConnections()
		listener.Close()
		if err := receive(t, done, "end of the receiver"); err != nil {
			t.Error(err)
		}
	})
}

// closeOnSecondRequest accepts two connections. On the first it answers one request, reads
// another and hangs up, as a receiver does whose idle timeout runs out just then; on the second it answers.
func closeOnSecondRequest(listener net.Listener, requests chan<- []byte) error {
	read := func(r *bufio.Reader) error {
		req, err := http.ReadRequest(r)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(req.Body)
		requests <- body
		return err
	}
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	for _, answers := range [][]string{{ok, ""}, {ok}} {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		r := bufio.NewReader(conn)
		for _, answer := range answers {
			if err := read(r); err != nil {
				return err
			}
			if answer == "" {
				conn.Close()
			} else if _, err := io.WriteString(conn, answer); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestWebhookTransport(t *testing.T) {
	t.Parallel()

	t.Run("goes through the environment's proxy, as net/http does", func(t *testing.T) {
		t.Parallel()
		// net/http reads the environment once per process, so the test cannot set it.
		want, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "http", Host: "example.com"}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := newTransport(1).Proxy(&http.Request{URL: &url.URL{Scheme: "http", Host: "example.com"}})
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
	})

	t.Run("of one's own gets the credentials as a header only, so that it cannot log the address with them", func(t *testing.T) {
		t.Parallel()
		transport := transportFunc(func(r *http.Request) (*http.Response, error) {
			if user, password, ok := r.BasicAuth(); !ok || user != "ann" || password != "s3cret" {
				t.Errorf("basic authentication %q %q %v", user, password, ok)
			}
			return nil, fmt.Errorf("cannot reach %s", r.URL)
		})
		w := newWebhook(t, WebhookConfig{URL: "http://ann:s3cret@example.com/hooks", Transport: transport})
		err := w.Handle(t.Context(), newEvent(1))
		if want := "post to http://example.com/hooks: cannot reach http://example.com/hooks"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})

	t.Run("speaks HTTP/2 where the receiver does", func(t *testing.T) {
		t.Parallel()
		protocols := make(chan string, 1)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { protocols <- r.Proto }))
		server.EnableHTTP2 = true
		server.StartTLS()
		t.Cleanup(server.Close)
		transport := newTransport(1)
		transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
		if err := newWebhook(t, WebhookConfig{URL: server.URL, Transport: transport}).Handle(t.Context(), newEvent(1)); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, protocols, "request"); got != "HTTP/2.0" {
			t.Errorf("spoke %s", got)
		}
	})
}

func TestNewWebhook(t *testing.T) {
	t.Parallel()

	t.Run("accepts http and https addresses", func(t *testing.T) {
		t.Parallel()
		for _, address := range []string{
			"http://example.com", "https://example.com/", "http://localhost:8080/a?b=c", "http://[::1]:80/",
			"HTTP://EXAMPLE.COM", "https://ann:s3cret@example.com", "http://example.com:",
		} {
			if _, err := NewWebhook(WebhookConfig{URL: address, Source: source}); err != nil {
				t.Errorf("%q: %v", address, err)
			}
		}
	})

	t.Run("refuses others without repeating them", func(t *testing.T) {
		t.Parallel()
		for address, want := range map[string]string{
			"":                                "must begin with http",
			"example.com/s3cret":              "must begin with http",
			"ftp://ann:s3cret@example.com":    "must begin with http",
			"http://":                         "no host",
			"http:///s3cret":                  "no host",
			"http://:8080/s3cret":             "no host",
			"http:s3cret":                     "no host",
			"http://ann:s3/cret@example.com":  "malformed",
			"http://ann:s3 cret@example.com":  "malformed",
			"http://ann:%s3cret@example.com":  "malformed",
			"http://example.com/s3cret\n":     "malformed",
			"http://example.com:0/s3cret":     "port",
			"http://example.com:65536/s3cret": "port",
		} {
			_, err := NewWebhook(WebhookConfig{URL: address, Source: source})
			if err == nil {
				t.Errorf("%q was accepted", address)
			} else if text := err.Error(); !strings.Contains(text, want) || strings.Contains(text, "s3") {
				t.Errorf("%q: %v", address, err)
			}
		}
	})

	t.Run("reports every problem at once", func(t *testing.T) {
		t.Parallel()
		_, err := NewWebhook(WebhookConfig{URL: "example.com", Secrets: []string{"s3cret"}, Timeout: -1})
		if err == nil {
			t.Fatal("no error")
		}
		for _, want := range []string{"URL", "source is empty", "whsec_", "timeout"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not contain %q", err, want)
			}
		}
	})
}

func BenchmarkWebhook(b *testing.B) {
	server := serve(b, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
	})
	e := newEvent(1)
	// The floor: the same server and a body as large, through a bare http.Client.
	b.Run("floor", func(b *testing.B) {
		transport := newTransport(1)
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		body := bytes.Repeat([]byte("x"), 500)
		b.ReportAllocs()
		for b.Loop() {
			resp, err := client.Post(server.URL, "application/json", bytes.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			resp.Body.Close()
		}
	})
	for name, secrets := range map[string][]string{"plain": nil, "signed": {oldSecret}} {
		b.Run(name, func(b *testing.B) {
			w := newWebhook(b, WebhookConfig{URL: server.URL, Secrets: secrets})
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Handle(context.Background(), e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
