package sink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/sink/cloudevent"
)

// Defaults of [WebhookConfig]; those of the worker (handler timeout, concurrency).
const (
	DefaultWebhookTimeout     = 30 * time.Second
	DefaultWebhookConcurrency = 64
)

// WebhookConfig says where and how [NewWebhook] delivers.
type WebhookConfig struct {
	// URL is the receiver's address, http or https. Required. A user and password in it are
	// sent as HTTP basic authentication. They and the query never appear in errors and logs; the path does.
	URL string

	// Source is the CloudEvents source of every event, see [cloudevent.CheckSource]. Required.
	Source string

	// Secrets sign each request by Standard Webhooks (webhook-id, webhook-timestamp,
	// webhook-signature). Each is "whsec_" and the key in base64; Standard Webhooks asks for
	// random keys of 24 to 64 bytes. With several, each signs, so that receivers can change
	// theirs one after the other. One string may hold several, separated by white
	// space, as a file of secrets does. Without any, requests are not signed.
	// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
	Secrets []string

	// Timeout bounds one request, from connecting to the answer's header. The handler's
	// context bounds it too. Defaults to [DefaultWebhookTimeout].
	Timeout time.Duration

	// Concurrency is the number of connections kept open to the receiver between requests:
	// that of the worker's handlers, or else the rest connect anew for every event.
	// Defaults to [DefaultWebhookConcurrency]. Ignored if Transport is set.
	Concurrency int

	// Transport sends the requests, for instance with a client certificate. Defaults to a
	// transport that uses HTTP_PROXY, HTTPS_PROXY and NO_PROXY as net/http does.
	Transport http.RoundTripper

	// Version is the program's version, sent as "User-Agent: outbox/<version>". Defaults to none.
	Version string
}

// Webhook posts each event as CloudEvents JSON to an HTTP address. It is safe for concurrent use.
//
// An answer of 2xx means delivered, whatever becomes of its body. 408, 425, 429, 5xx, no answer
// and a failed connection are retried, after the answer's Retry-After if there is one (at most 24
// hours), else by the worker's retry policy. Every other answer is permanent, redirects among them: they are not followed.
type Webhook struct {
	target    string // URL without credentials
	name      string // URL for people: without credentials and query
	header    http.Header
	user      *url.Userinfo
	source    string
	signer    signer
	timeout   time.Duration
	transport http.RoundTripper
}

// NewWebhook returns a webhook, or every problem of cfg at once.
func NewWebhook(cfg WebhookConfig) (*Webhook, error) {
	address, urlErr := parseAddress(cfg.URL)
	signer, secretsErr := newSigner(cfg.Secrets)
	var limitsErr error
	if cfg.Timeout < 0 || cfg.Concurrency < 0 {
		limitsErr = errors.New("timeout and concurrency must not be negative")
	}
	if err := errors.Join(urlErr, cloudevent.CheckSource(cfg.Source), secretsErr, limitsErr); err != nil {
		return nil, fmt.Errorf("webhook sink: %w", err)
	}

	w := &Webhook{
		name:      withoutSecrets(address),
		user:      address.User,
		source:    cfg.Source,
		signer:    signer,
		timeout:   cmp.Or(cfg.Timeout, DefaultWebhookTimeout),
		transport: cfg.Transport,
		header: http.Header{
			"Content-Type": {cloudevent.ContentType},
			"User-Agent":   {userAgent(cfg.Version)},
			// Not sent, since it has no value. It tells net/http that the request may be sent
			// again: every event can be, and otherwise a receiver that closes an idle connection just as
			// an event goes out would cost an attempt and a minute.
			"Idempotency-Key": nil,
		},
	}
	if w.transport == nil {
		w.transport = newTransport(cmp.Or(cfg.Concurrency, DefaultWebhookConcurrency))
	}
	// Credentials leave the address here, so that no error of a lower layer can quote them.
	address.User = nil
	w.target = address.String()
	return w, nil
}

// newTransport exists because http.DefaultTransport keeps two idle connections per host, so that more
// concurrent handlers would pay for a new connection with every event.
func newTransport(concurrency int) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    concurrency,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// All requests share one HTTP/2 connection; without pings a silent one fails them all
		// until the operating system gives it up.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
	}
}

// Handle posts e and judges the answer. If ctx ends first, it returns the context's error, wrapped.
func (w *Webhook) Handle(ctx context.Context, e *event.Event) error {
	reqCtx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()

	req, err := w.request(reqCtx, e)
	if err != nil {
		return fmt.Errorf("post to %s: %w", w.name, err)
	}
	// Not through an http.Client: it would follow redirects and put the address into its errors.
	resp, err := w.transport.RoundTrip(req)
	switch {
	case err == nil:
		return readAnswer(resp, cancel).judge(w.name, time.Now())
	case ctx.Err() != nil:
		return fmt.Errorf("post to %s: %w", w.name, ctx.Err())
	case reqCtx.Err() != nil:
		return fmt.Errorf("post to %s: no answer within %s", w.name, w.timeout)
	default:
		return fmt.Errorf("post to %s: %w", w.name, err)
	}
}

func (w *Webhook) request(ctx context.Context, e *event.Event) (*http.Request, error) {
	body := cloudevent.Append(nil, w.source, e)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = w.header.Clone()
	if w.user != nil {
		password, _ := w.user.Password()
		req.SetBasicAuth(w.user.Username(), password)
	}
	// The request belongs to the delivery's span, where there is one. The publisher's is in the event (CloudEvents, "Distributed
	// Tracing extension", says which goes where).
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	if err := w.signer.sign(req.Header, e.PublicID.String(), time.Now(), body); err != nil {
		return nil, err
	}
	return req, nil
}

// CloseIdleConnections closes connections that no request is using.
func (w *Webhook) CloseIdleConnections() {
	if t, ok := w.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// String returns the address without credentials and query.
func (w *Webhook) String() string { return w.name }

func userAgent(version string) string {
	if version == "" {
		return "outbox"
	}
	return "outbox/" + version
}

// parseAddress names what is wrong, but never quotes the address: where its password contains a
// character that should be escaped, even net/url's own message contains parts of it.
func parseAddress(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("the URL is malformed: it must be http://host[:port]/path or https://…, " +
			"with special characters in user and password percent-encoded")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the URL must begin with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("the URL has no host: it must be http://host[:port]/path or https://…")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, errors.New("the URL's port must be between 1 and 65535")
		}
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// withoutSecrets returns scheme, host and path.
func withoutSecrets(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}
