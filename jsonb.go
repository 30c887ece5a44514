package outbox

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// What PostgreSQL's jsonb and the worker can hold. PostgreSQL keeps the numbers of a jsonb as numeric (manual,
// "JSON Types", "Arbitrary Precision Numbers").
const (
	maxIntegerDigits  = 131072
	maxFractionDigits = 16383
	// maxExponent is where numeric refuses an exponent even of zero: INT_MAX / 2 in the source of
	// PostgreSQL 15, one more from 16 on.
	maxExponent = math.MaxInt32 / 2
	// maxDepth keeps far from max_stack_depth, which ends jsonb at 13,000 levels of objects with the default
	// of 2 MB (PostgreSQL 15) and at a few hundred with the least, and from the 10,000 levels that
	// encoding/json reads.
	maxDepth = 1000
	// maxTextBytes is the largest value that jsonb stores. It is compared with the size as text: a number
	// as short as 1e131071 comes back as 131,072 digits, and a row whose text exceeds PostgreSQL's 1 GB for
	// one value can be written, but never read.
	maxTextBytes = 1<<28 - 1
)

// checkJSONB reports why jsonb would refuse a valid JSON text, or why its text would be too much to read back.
func checkJSONB(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("is not valid UTF-8")
	}
	depth, size := 0, len(text)
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			n, err := checkString(text[i:])
			if err != nil {
				return fmt.Errorf("string at byte %d %w", i, err)
			}
			i += n
		case c == '-' || '0' <= c && c <= '9':
			n, digits, err := checkNumber(text[i:])
			if err != nil {
				return fmt.Errorf("number at byte %d %w", i, err)
			}
			size += digits
			i += n
		case c == '{' || c == '[':
			depth++
			if depth > maxDepth {
				return errTooDeep
			}
			i++
		case c == '}' || c == ']':
			depth--
			i++
		default:
			i++
		}
	}
	if size > maxTextBytes {
		return fmt.Errorf("takes %d bytes as text, more than %d", size, maxTextBytes)
	}
	return nil
}

var (
	errTooDeep   = fmt.Errorf("is nested more than %d levels deep", maxDepth)
	errOverflow  = fmt.Errorf("has more than %d digits before or %d after the decimal point", maxIntegerDigits, maxFractionDigits)
	errNUL       = errors.New(`contains NUL (\u0000)`)
	errSurrogate = errors.New(`contains half of a surrogate pair (\ud800 to \udfff)`)
)

// checkString checks the escapes of the string that text begins with and returns its length.
func checkString(text []byte) (length int, err error) {
	for i := 1; ; i++ {
		switch text[i] {
		case '"':
			return i + 1, nil
		case '\\':
			i++
			if text[i] != 'u' {
				continue
			}
			unit := codeUnit(text[i+1:])
			i += 4
			switch {
			case unit == 0:
				return 0, errNUL
			case isLowSurrogate(unit):
				return 0, errSurrogate
			case isHighSurrogate(unit):
				if text[i+1] != '\\' || text[i+2] != 'u' || !isLowSurrogate(codeUnit(text[i+3:])) {
					return 0, errSurrogate
				}
				i += 6
			}
		}
	}
}

// codeUnit returns the value of the four hexadecimal digits that text begins with.
func codeUnit(text []byte) uint64 {
	unit, _ := strconv.ParseUint(string(text[:4]), 16, 16) // valid JSON has four
	return unit
}

func isHighSurrogate(unit uint64) bool { return 0xD800 <= unit && unit <= 0xDBFF }
func isLowSurrogate(unit uint64) bool  { return 0xDC00 <= unit && unit <= 0xDFFF }

// checkNumber follows PostgreSQL's numeric_in for the number that text begins with. It returns the number's
// length and how many digits PostgreSQL's text of it can have, at most.
func checkNumber(text []byte) (length, digits int, err error) {
	i := 0
	if text[i] == '-' {
		i++
	}
	// integer and fraction count mantissa digits; leading counts the zeros before the first other digit.
	integer, fraction, leading, zero := 0, 0, 0, true
	count := func(part *int) {
		for ; i < len(text) && '0' <= text[i] && text[i] <= '9'; i++ {
			*part++
			if zero = zero && text[i] == '0'; zero {
				leading++
			}
		}
	}
	count(&integer)
	if i < len(text) && text[i] == '.' {
		i++
		count(&fraction)
	}
	exponent := 0
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		start := i + 1
		for i = start; i < len(text) && (text[i] == '+' || text[i] == '-' || '0' <= text[i] && text[i] <= '9'); i++ {
		}
		exponent, err = strconv.Atoi(string(text[start:i]))
		if err != nil || exponent >= maxExponent || exponent <= -maxExponent {
			return 0, 0, errOverflow
		}
	}
	scale := max(0, fraction-exponent) // digits after the decimal point
	before := 1                        // digits before it
	if !zero {
		before = max(1, integer+exponent-leading)
	}
	if scale > maxFractionDigits || before > maxIntegerDigits {
		return 0, 0, errOverflow
	}
	return i, scale + before, nil
}
