package demo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/rs/zerolog"
)

// workerLog is the worker's log as the demo shows it: warnings and errors, a line each. Failed and dead events are left
// out, since the demo tells of them itself.
func workerLog(show func(string), p paint) zerolog.Logger {
	return zerolog.New(logWriter(func(text string) { show(p.yellow("worker: " + text)) })).Level(zerolog.WarnLevel)
}

// logWriter takes one JSON object of zerolog's a call.
type logWriter func(text string)

func (show logWriter) Write(line []byte) (int, error) {
	var facts map[string]any
	if err := json.Unmarshal(line, &facts); err != nil {
		return 0, fmt.Errorf("read log line: %w", err)
	}
	name := fmt.Sprint(facts[zerolog.MessageFieldName])
	if name == "event_failed" || name == "event_dead" {
		return len(line), nil
	}
	for _, field := range []string{zerolog.MessageFieldName, zerolog.LevelFieldName, zerolog.TimestampFieldName, "stack"} {
		delete(facts, field)
	}
	text := name
	for _, field := range slices.Sorted(maps.Keys(facts)) {
		text += fmt.Sprintf(" %s=%v", field, facts[field])
	}
	show(shorten(text, width-len("worker: ")))
	return len(line), nil
}
