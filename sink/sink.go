package sink

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/seed-9a365b49/outbox/dispatch"
)

// Sink is a subscriber that can say in a log where it delivers to.
type Sink interface {
	dispatch.Handler
	// String describes the sink; it never contains credentials.
	fmt.Stringer
}

// Options are what [Parse] needs besides the sink's name.
type Options struct {
	// Source is the CloudEvents source of every event. Required, except by the sink "discard".
	Source string
	// Stdout is where the sink "stdout" writes. Defaults to os.Stdout.
	Stdout io.Writer
	// Webhook configures the sink of an http or https address. Its URL and Source are
	// set by Parse.
	Webhook WebhookConfig
}

const choices = "choose stdout, discard, or an http:// or https:// address"

// Parse returns the sink that spec names: "stdout", "discard", or the address of a webhook.
func Parse(spec string, opts Options) (Sink, error) {
	switch {
	case spec == "":
		return nil, errors.New("no sink given: " + choices)
	case spec == "stdout":
		w := opts.Stdout
		if w == nil {
			w = os.Stdout
		}
		return noNil(NewStdout(w, opts.Source))
	case spec == "discard":
		return Discard{}, nil
	case isHTTP(spec):
		cfg := opts.Webhook
		cfg.URL, cfg.Source = spec, opts.Source
		return noNil(NewWebhook(cfg))
	default:
		return nil, fmt.Errorf("unknown sink %q: %s", withoutAddress(spec), choices)
	}
}

// noNil keeps a nil pointer from becoming a Sink that is not nil.
func noNil[S Sink](s S, err error) (Sink, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func isHTTP(spec string) bool {
	scheme, _, found := strings.Cut(spec, ":")
	return found && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}

// withoutAddress leaves only the scheme of an address given by mistake, such as the
// database's: it may contain a password.
func withoutAddress(spec string) string {
	if scheme, _, found := strings.Cut(spec, "://"); found {
		return scheme + "://…"
	}
	return spec
}
