package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/admin"
)

// usageError is a wrong command line or environment.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// explained is an error whose text has been replaced by one that says what to do.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

func explain(err error, format string, args ...any) error {
	return &explained{fmt.Sprintf(format, args...), err}
}

// exit reports err, the end of cmd, in one line and returns the exit code.
func (a *app) exit(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitClean
	}
	code := exitFailure
	if _, usage := errors.AsType[*usageError](err); usage || !a.started {
		code = exitUsage
	}
	if !a.started {
		if unknown := unknownCommand(cmd, a.args); unknown != nil {
			err = unknown
		}
	}
	fmt.Fprintf(a.stderr, "outbox: %s\n", oneLine(ctx, err))
	return code
}

// unknownCommand returns the error for a command that does not exist, nil if that is not what is wrong. Cobra complains
// of the first unknown flag behind it instead.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if cmd == nil || !cmd.HasSubCommands() {
		return nil
	}
	if _, rest, err := cmd.Root().Find(args); err == nil {
		args = rest
	}
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			continue
		}
		cmd.SuggestionsMinimumDistance = 2
		hint := ""
		if similar := cmd.SuggestionsFor(arg); len(similar) > 0 {
			hint = ", did you mean " + strings.Join(similar, " or ") + "?"
		}
		return usageErrorf("unknown command %s%s: see `%s --help`", quoteHarmless(arg), hint, cmd.CommandPath())
	}
	return nil
}

var harmless = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,40}$`)

// quoteHarmless quotes an argument that was given by mistake, unless it looks as if it could contain a password.
func quoteHarmless(arg string) string {
	if !harmless.MatchString(arg) {
		return "(not shown)"
	}
	return fmt.Sprintf("%q", arg)
}

// quoteValue quotes a flag's value, unless it looks like an address or a secret that was meant for another flag.
func quoteValue(value string) string {
	if strings.ContainsAny(value, "@=") || strings.Contains(value, "://") || strings.Contains(value, "whsec_") {
		return "(not shown)"
	}
	return fmt.Sprintf("%q", value)
}

var lineBreaks = regexp.MustCompile(`(:?)\s*\n\s*`)

// oneLine returns the text of err without line breaks, and without the prefix that every line of the program has.
func oneLine(ctx context.Context, err error) string {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.Is(err, admin.ErrUncertain) {
		return "interrupted"
	}
	return strings.TrimPrefix(onOneLine(err.Error()), "outbox: ")
}

func onOneLine(text string) string {
	return lineBreaks.ReplaceAllStringFunc(strings.TrimSpace(text), func(s string) string {
		if strings.HasPrefix(s, ":") {
			return ": "
		}
		return "; "
	})
}
