package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// printf writes to standard output.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format, args...)
	return outputError(err)
}

// outputError says which write failed, if one did.
func outputError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("write to standard output: %w", err)
}

// warn says on standard error what went wrong beside what was asked for.
func (a *app) warn(what string, err error) {
	text := strings.ReplaceAll(what, "_", " ")
	if err != nil {
		text += ": " + onOneLine(err.Error())
	}
	fmt.Fprintf(a.stderr, "outbox: %s\n", text)
}

// writeJSON writes v for programs, and for people who look.
func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// cobraOutput is standard output for cobra, which drops errors of writing. It is not safe for concurrent use.
type cobraOutput struct {
	w   io.Writer
	err error // the first
}

func (o *cobraOutput) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if o.err == nil {
		o.err = outputError(err)
	}
	return n, err
}
