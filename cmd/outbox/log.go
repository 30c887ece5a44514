package main

import (
	"io"
	"time"

	"github.com/rs/zerolog"
)

// Zerolog keeps these for the whole program. Its own default cuts times to seconds.
func init() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
}

// logLevels are the levels of --log-level. Zerolog's own parser takes an empty one for "log nothing".
var logLevels = []string{"trace", "debug", "info", "warn", "error"}

// newLogger returns a logger that writes to w: JSON lines, or lines for people, which "auto" chooses on a terminal.
func newLogger(w io.Writer, level, format string) zerolog.Logger {
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		parsed = zerolog.InfoLevel // not reached: level is one of logLevels
	}
	terminal := isTerminal(w)
	if format == "console" || format == "auto" && terminal {
		w = zerolog.ConsoleWriter{Out: w, NoColor: !terminal, TimeFormat: "15:04:05.000"}
	}
	return zerolog.New(w).Level(parsed).With().Timestamp().Logger()
}
