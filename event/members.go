package event

import (
	"bytes"
	"iter"
)

// members yields the members of a JSON object: the name with its quotes, without escapes where it
// had any, and the value's text. It yields nothing for a text that is not an object, and stops where
// a text that is not valid JSON makes no sense. Every value has at least one byte.
//
// It exists because encoding/json compares names without regard to case, and because reading an
// envelope with it costs two scans of every payload and a copy; this is one pass on the worker's hot path.
func members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		s := scanner{text: object}
		if !s.take('{') {
			return
		}
		for {
			name := s.value()
			if len(name) < 2 || name[0] != '"' || !s.take(':') {
				return
			}
			value := s.value()
			if len(value) == 0 || !yield(plainName(name), value) || !s.take(',') {
				return
			}
		}
	}
}

// plainName undoes escapes in a name. The database writes none that it does not need, so the names
// of an envelope have them only in other texts.
func plainName(name []byte) []byte {
	if bytes.IndexByte(name, '\\') < 0 {
		return name
	}
	return []byte(`"` + unquote(name) + `"`)
}

// scanner cuts a valid JSON text into values without decoding them.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) skipSpace() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// take skips white space and then c, and reports whether c was there.
func (s *scanner) take(c byte) bool {
	s.skipSpace()
	if s.at == len(s.text) || s.text[s.at] != c {
		return false
	}
	s.at++
	return true
}

// value returns the text of the next value, empty if there is none.
func (s *scanner) value() []byte {
	s.skipSpace()
	start, depth := s.at, 0
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case '"':
			if !s.skipString() {
				return nil
			}
			if depth == 0 {
				return s.since(start)
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of what surrounds a number, true, false or null
				return s.since(start)
			}
			depth--
			if depth == 0 {
				s.at++
				return s.since(start)
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return s.since(start)
			}
		}
		s.at++
	}
	if depth > 0 {
		return nil
	}
	return s.since(start)
}

// since returns the text from start on, with no room behind it: an append to it must not
// write over the rest of the payload.
func (s *scanner) since(start int) []byte {
	return s.text[start:s.at:s.at]
}

// skipString skips the string that begins here and reports whether it ends.
func (s *scanner) skipString() bool {
	for i := s.at + 1; ; i++ {
		quote := bytes.IndexByte(s.text[i:], '"')
		if quote < 0 {
			return false
		}
		i += quote
		backslashes := 0
		for s.text[i-1-backslashes] == '\\' { // stops at the opening quote at the latest
			backslashes++
		}
		if backslashes%2 == 0 {
			s.at = i + 1
			return true
		}
	}
}
