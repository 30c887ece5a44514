package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-9a365b49/outbox/dispatch"
)

const (
	// maxAnswer is how much of an answer is read, in bytes. The connection can be used again
	// only if the answer was read to its end.
	maxAnswer = 64 << 10
	// answerTimeout is how long the body may take once the header is there: the outcome is
	// known by then, so a body that does not end costs its connection and not the handler's time.
	answerTimeout = time.Second
	// maxReason is how much of an answer's text goes into an error, in bytes.
	maxReason = 200
	// maxRetryAfter bounds what a receiver can ask for.
	maxRetryAfter = 24 * time.Hour
)

// answer is what a receiver said, as far as it decides anything.
type answer struct {
	status   int
	header   http.Header
	location string // where a redirect leads, without credentials and query; empty: nowhere
	reason   string // the beginning of the body, on one line; empty for 2xx
}

// readAnswer reads the answer and closes it. Cancel must end the request.
func readAnswer(resp *http.Response, cancel context.CancelFunc) answer {
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if u, err := resp.Location(); err == nil && a.status != http.StatusNotModified {
		a.location = withoutSecrets(u)
	}
	if a.status == http.StatusSwitchingProtocols {
		return a // its body is the connection itself and has no end
	}
	defer time.AfterFunc(answerTimeout, cancel).Stop()
	// An error while reading changes nothing: the status is what counts.
	body := io.LimitReader(resp.Body, maxAnswer)
	if !a.accepted() {
		// White space goes first, so more is read than is kept.
		text, _ := io.ReadAll(io.LimitReader(body, 4*maxReason))
		a.reason = oneLine(text)
	}
	_, _ = io.Copy(io.Discard, body)
	return a
}

func (a answer) accepted() bool { return a.status >= 200 && a.status <= 299 }

// judge returns nil for an event that the receiver at address has accepted, and otherwise an
// error that tells dispatch whether and when to try again.
func (a answer) judge(address string, now time.Time) error {
	switch {
	case a.accepted():
		return nil
	case a.status >= 300 && a.status <= 399 && a.location != "":
		return dispatch.Permanent(a.errorf("post to %s: answered %s to %s; redirects are not followed, so the sink must have the final address",
			address, a.statusText(), a.location))
	case a.temporary():
		err := a.errorf("post to %s: answered %s", address, a.statusText())
		if delay, ok := retryAfter(a.header, now); ok {
			return dispatch.RetryAfter(delay, err)
		}
		return err
	default:
		return dispatch.Permanent(a.errorf("post to %s: answered %s", address, a.statusText()))
	}
}

// temporary counts what lies outside 100–599 as a server error, as RFC 9110 §15 says.
func (a answer) temporary() bool {
	switch a.status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return a.status < 100 || a.status >= 500
	}
}

// statusText uses the standard's words: the receiver's own could be anything.
func (a answer) statusText() string {
	return strings.TrimSpace(strconv.Itoa(a.status) + " " + http.StatusText(a.status))
}

func (a answer) errorf(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if a.reason != "" {
		text += ": " + a.reason
	}
	return errors.New(text)
}

// retryAfter reads Retry-After (RFC 9110 §10.2.3): seconds, or a date, which is compared with the
// answer's own Date, so that the two clocks need not agree. A time that has passed is no
// wish at all: to retry at once would use up the attempts within moments.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	delay := maxRetryAfter
	if strings.Trim(value, "0123456789") == "" {
		// More digits than an integer has: longer than the limit anyway.
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err == nil && seconds < int64(maxRetryAfter/time.Second) {
			delay = time.Duration(seconds) * time.Second
		}
	} else {
		at, err := http.ParseTime(value)
		if err != nil {
			return 0, false
		}
		if date, err := http.ParseTime(header.Get("Date")); err == nil {
			now = date
		}
		delay = min(at.Sub(now), maxRetryAfter)
	}
	return delay, delay > 0
}

// oneLine makes text fit for a log and for last_error: valid UTF-8, no control characters or line
// breaks, at most maxReason bytes.
func oneLine(text []byte) string {
	words := strings.FieldsFunc(strings.ToValidUTF8(string(text), "\ufffd"), func(r rune) bool {
		return !unicode.IsPrint(r) || r == ' '
	})
	line := strings.Join(words, " ")
	if len(line) <= maxReason {
		return line
	}
	cut := maxReason - len("…")
	for !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + "…"
}
