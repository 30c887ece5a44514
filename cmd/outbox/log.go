package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
)

// Zerolog keeps these for the whole program. Its own default cuts times to seconds.
func init() {
	zerolog.ErrorMarshalFunc = func(err error) any {
		if err == nil {
			return nil // an untyped one, which leaves the field out
		}
		return loggedError(err)
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
}

// loggedError is the text of an error in the log: one line, and with what helps against it where nothing else says so.
func loggedError(err error) string {
	text := err.Error()
	for _, connect := range connectErrors(err) {
		short := fmt.Sprintf("no connection to %s (%s)", serverName(connect.Config), causes(connect))
		text = strings.ReplaceAll(text, connect.Error(), short)
	}
	if lostStatement(err) {
		text += ": behind a transaction pooler, add " + withoutStatements + " to the database's address"
	}
	return onOneLine(text)
}

// connectErrors returns the failed connections that err tells of: the owner's session can try two addresses.
func connectErrors(err error) []*pgconn.ConnectError {
	switch e := err.(type) {
	case *pgconn.ConnectError:
		return []*pgconn.ConnectError{e}
	case interface{ Unwrap() error }:
		return connectErrors(e.Unwrap())
	case interface{ Unwrap() []error }:
		var all []*pgconn.ConnectError
		for _, part := range e.Unwrap() {
			all = append(all, connectErrors(part)...)
		}
		return all
	}
	return nil
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
