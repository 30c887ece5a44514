package cloudevent

import (
	"errors"
	"net/url"
	"strings"
)

// DefaultSource is the source of events whose source nobody configured:
// "/outbox/<database>", with the database's name escaped.
func DefaultSource(database string) string {
	return "/outbox/" + url.PathEscape(database)
}

// CheckSource returns an error if source is not what CloudEvents asks for, a non-empty
// URI-reference: "https://billing.example.com", "urn:example:billing", "/outbox/billing".
func CheckSource(source string) error {
	if source == "" {
		return errors.New("source is empty; CloudEvents needs a URI or a path such as /outbox/billing")
	}
	// net/url is lenient with characters that RFC 3986 allows only in escaped form.
	notAllowed := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"<>\\^`{|}", r) }
	if _, err := url.Parse(source); err != nil || strings.ContainsFunc(source, notAllowed) {
		return errors.New("source is not a URI or a path (RFC 3986); escape other characters, for instance a space as %20")
	}
	return nil
}
