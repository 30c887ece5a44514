package dispatch

import (
	"strings"
	"unicode/utf8"
)

// MaxErrorBytes is the most that events.outbox.last_error keeps of an error.
const MaxErrorBytes = 2048

// CleanError makes s storable as events.outbox.last_error: valid UTF-8 (each invalid byte
// becomes U+FFFD), without NUL, at most [MaxErrorBytes] bytes, cut between runes. PostgreSQL
// refuses the first two in a text value (22021), and then recording the failure would fail.
func CleanError(s string) string { return cleanTo(s, MaxErrorBytes) }

func cleanTo(s string, limit int) string {
	if len(s) <= limit && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s { // an invalid byte arrives as utf8.RuneError, which is U+FFFD
		if r == 0 {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// joinErrors joins the texts of several subscribers into one line. Where they do not all
// fit, each gets the same share, so that a long one does not hide the others.
func joinErrors(texts []string) string {
	const sep = "; "
	total := len(sep) * (len(texts) - 1)
	for _, t := range texts {
		total += len(t)
	}
	if total > MaxErrorBytes {
		share := MaxErrorBytes/len(texts) - len(sep)
		for i, t := range texts {
			texts[i] = cleanTo(t, share)
		}
	}
	return CleanError(strings.Join(texts, sep))
}
