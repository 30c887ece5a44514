package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox"
)

const (
	// batchLines and batchBytes are where a batch ends.
	batchLines = 500
	batchBytes = 8 << 20
	// batchPatience is how long a batch waits for its next line: a slow stream is not held back.
	batchPatience = time.Second
	// readAhead is how many lines are read before they are asked for. Each can be long.
	readAhead = 16
	// maxLine is the longest line: somewhat more than the 256 MiB that an event's data may have.
	maxLine = 1<<28 + 1<<16
)

// byteOrderMark is what some editors and PowerShell begin a file with.
var byteOrderMark = []byte("\ufeff")

// batches cuts NDJSON into batches of messages.
type batches struct {
	lines  <-chan line
	failed error // of reading; set before lines is closed
}

// line is one line that is not blank.
type line struct {
	number int // from 1, blank ones counted
	text   []byte
}

// newBatches begins to read. The goroutine ends with r or with ctx; a read that blocks cannot be interrupted.
func newBatches(ctx context.Context, r io.Reader) *batches {
	lines := make(chan line, readAhead)
	b := &batches{lines: lines}
	go func() {
		defer close(lines)
		b.failed = readLines(ctx, r, lines)
	}()
	return b
}

func readLines(ctx context.Context, r io.Reader, lines chan<- line) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 64<<10), maxLine)
	number := 0
	for scanner.Scan() {
		number++
		text := scanner.Bytes()
		if number == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			continue
		}
		select {
		case lines <- line{number, bytes.Clone(text)}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d is longer than %d bytes", number+1, maxLine)
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("read standard input after line %d: %w", number, err)
	}
	return nil
}

// batch is some messages, and the numbers of the lines that they came from.
type batch struct {
	messages []outbox.Message
	numbers  []int
	last     int // line
	bytes    int
}

// next returns the next batch, nil at the end.
func (b *batches) next(ctx context.Context) (*batch, error) {
	batch := &batch{}
	var patience <-chan time.Time
	for len(batch.messages) < batchLines && batch.bytes < batchBytes {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-patience:
			return batch, nil
		case l, more := <-b.lines:
			if !more {
				return batch.orNil(), b.failed
			}
			if err := batch.add(l); err != nil {
				return nil, err
			}
			patience = time.After(batchPatience)
		}
	}
	return batch, nil
}

func (b *batch) orNil() *batch {
	if len(b.messages) == 0 {
		return nil
	}
	return b
}

func (b *batch) add(l line) error {
	m, err := parseLine(l.text)
	if err != nil {
		return fmt.Errorf("line %d: %w", l.number, err)
	}
	b.messages = append(b.messages, m)
	b.numbers = append(b.numbers, l.number)
	b.last = l.number
	b.bytes += len(l.text)
	return nil
}

// failed says what an error of publishing means for the batch's lines.
func (b *batch) failed(err error) error {
	if invalid, ok := errors.AsType[*outbox.InvalidMessageError](err); ok {
		return b.firstBadLine(invalid)
	}
	if _, answered := errors.AsType[*pgconn.PgError](err); !answered && !pgconn.SafeToRetry(err) {
		return fmt.Errorf("lines %d to %d may have been published or not, look before they are repeated: %w", b.numbers[0], b.last, err)
	}
	return fmt.Errorf("lines %d to %d: %w", b.numbers[0], b.last, err)
}

// firstBadLine is everything that is wrong with the first line that the outbox refuses.
func (b *batch) firstBadLine(invalid *outbox.InvalidMessageError) error {
	first := invalid.Fields[0].Index
	var problems []string
	for _, field := range invalid.Fields {
		if field.Index == first {
			problems = append(problems, fmt.Sprintf("%s %s", field.Field, field.Err))
		}
	}
	return fmt.Errorf("line %d: %s", b.numbers[first], strings.Join(problems, "; "))
}

// lineFields is the form of a line.
type lineFields struct {
	AggregateType string          `json:"aggregate_type"`
	AggregateID   string          `json:"aggregate_id"`
	EventType     string          `json:"event_type"`
	Type          string          `json:"type"`
	Data          json.RawMessage `json:"data"` // raw, so that numbers keep every digit
	Version       *int            `json:"version"`
	CorrelationID string          `json:"correlation_id"`
	CausationID   string          `json:"causation_id"`
}

// parseLine reads the message of one line. What only the outbox can tell is left to it.
func parseLine(text []byte) (outbox.Message, error) {
	var f lineFields
	if !utf8.Valid(text) {
		return outbox.Message{}, errors.New("is not valid UTF-8")
	}
	if text[0] != '{' {
		return outbox.Message{}, errors.New("is not a JSON object")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return outbox.Message{}, decodeProblem(err)
	}
	if decoder.InputOffset() != int64(len(text)) {
		return outbox.Message{}, errors.New("has something behind its JSON object")
	}
	m := outbox.Message{
		AggregateType: f.AggregateType,
		EventType:     f.EventType,
		Data:          f.Data,
		CorrelationID: f.CorrelationID,
		CausationID:   f.CausationID,
	}
	var problems []string
	switch {
	case f.EventType != "" && f.Type != "" && f.EventType != f.Type:
		problems = append(problems, "has a type and another event_type")
	case f.EventType == "":
		m.EventType = f.Type
	}
	if f.Data == nil {
		problems = append(problems, "data is missing (for an event without data, write null)")
	}
	if f.Version != nil {
		if m.Version = *f.Version; m.Version < 1 {
			problems = append(problems, fmt.Sprintf("version %d is less than 1", m.Version))
		}
	}
	id, err := uuid.Parse(f.AggregateID)
	if err != nil {
		problems = append(problems, fmt.Sprintf("aggregate_id %q is not a UUID", f.AggregateID))
	}
	if len(problems) > 0 {
		return m, errors.New(strings.Join(problems, "; "))
	}
	m.AggregateID = id
	return m, nil
}

// decodeProblem says what is wrong without the words of Go.
func decodeProblem(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return fmt.Errorf("%s cannot be a %s", e.Field, e.Value)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("is not JSON: it ends too early")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}
