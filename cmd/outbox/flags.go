package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The values of flags. Their errors are for people: pflag's own speak of strconv.

// number is a whole number greater than zero.
type number int

func (n *number) String() string { return strconv.Itoa(int(*n)) }
func (n *number) Type() string   { return "number" }

func (n *number) Set(s string) error {
	value, err := strconv.ParseInt(s, 10, 32)
	if err != nil || value < 1 {
		return fmt.Errorf("%s is not a whole number between 1 and %d", quoteValue(s), math.MaxInt32)
	}
	*n = number(value)
	return nil
}

// eventID is the id of an event, or nil.
type eventID struct{ value *int64 }

// String is empty for none, which help then does not show as a default.
func (i *eventID) String() string {
	if i.value == nil {
		return ""
	}
	return strconv.FormatInt(*i.value, 10)
}
func (i *eventID) Type() string { return "ID" }

func (i *eventID) Set(s string) error {
	id, err := parseID(s)
	if err == nil {
		i.value = &id
	}
	return err
}

func parseID(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is not the id of an event, which is a whole number", quoteValue(s))
	}
	return id, nil
}

// duration is a time greater than zero.
type duration time.Duration

// String is empty for none, which help then does not show as a default.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
func (d *duration) Type() string { return "duration" }

func (d *duration) Set(s string) error {
	value, err := time.ParseDuration(s)
	if err != nil || value <= 0 {
		return fmt.Errorf("%s is not a duration greater than zero, such as 250ms, 30s or 5m", quoteValue(s))
	}
	*d = duration(value)
	return nil
}

// size is a number of bytes greater than zero, with or without a unit.
type size int

var sizeUnits = []struct {
	name  string
	bytes int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

func (z *size) String() string {
	for _, unit := range sizeUnits {
		if int(*z)%unit.bytes == 0 {
			return strconv.Itoa(int(*z)/unit.bytes) + unit.name
		}
	}
	return strconv.Itoa(int(*z))
}

func (z *size) Type() string { return "size" }

func (z *size) Set(s string) error {
	for _, unit := range sizeUnits {
		digits, found := strings.CutSuffix(s, unit.name)
		if !found {
			continue
		}
		value, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 32)
		if err != nil || value < 1 || value > int64(math.MaxInt32/unit.bytes) {
			break
		}
		*z = size(int(value) * unit.bytes)
		return nil
	}
	return fmt.Errorf("%s is not a size greater than zero and below 2GiB, such as 4MiB, 512KiB or 1048576", quoteValue(s))
}

// timeOfDay is a time such as 04:00; empty: none.
type timeOfDay string

func (c *timeOfDay) String() string { return string(*c) }
func (c *timeOfDay) Type() string   { return "HH:MM" }

func (c *timeOfDay) Set(s string) error {
	if _, err := time.Parse("15:04", s); err != nil && s != "" {
		return fmt.Errorf("%s is not a time of the day, such as 04:00", quoteValue(s))
	}
	*c = timeOfDay(s)
	return nil
}

// timeZone is a time zone by its IANA name.
type timeZone string

func (z *timeZone) String() string { return string(*z) }
func (z *timeZone) Type() string   { return "zone" }

func (z *timeZone) Set(s string) error {
	if _, err := time.LoadLocation(s); err != nil || s == "" || s == "Local" {
		return fmt.Errorf("%s is not a time zone, such as UTC or Europe/Berlin", quoteValue(s))
	}
	*z = timeZone(s)
	return nil
}

// choice is one of some words. An empty one leaves the default.
type choice struct {
	value   string
	options []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.options, "|") }

func (c *choice) Set(s string) error {
	word := strings.ToLower(s)
	if word == "" {
		return nil
	}
	if !slices.Contains(c.options, word) {
		return fmt.Errorf("%s is not one of %s", quoteValue(s), strings.Join(c.options, ", "))
	}
	c.value = word
	return nil
}

// choiceFlag adds a flag that takes one of some words, with their completion.
func choiceFlag(cmd *cobra.Command, name, shorthand, standard, usage string, options ...string) *choice {
	c := &choice{value: standard, options: options}
	cmd.Flags().VarP(c, name, shorthand, usage)
	complete := cobra.FixedCompletions(options, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // registered twice: a slip in the code
	}
	return c
}

// flagErrors reports every flag of cmd that is wrong. Pflag stops at the first.
func (a *app) flagErrors(cmd *cobra.Command, err error) error {
	_, args, findErr := cmd.Root().Find(a.args)
	if _, value := errors.AsType[*pflag.InvalidValueError](err); !value || findErr != nil {
		return flagError(cmd, err)
	}
	var errs []error
	last := cmd.Flags().ParseAll(args, func(f *pflag.Flag, value string) error {
		if err := f.Value.Set(value); err != nil {
			errs = append(errs, usageErrorf("--%s: %w", f.Name, valueError(err)))
		}
		return nil
	})
	if last != nil { // such as a flag that does not exist
		errs = append(errs, flagError(cmd, last))
	}
	if len(errs) == 0 {
		return flagError(cmd, err)
	}
	return errors.Join(errs...)
}

// flagError turns pflag's errors into usage errors. They are rebuilt from their parts, since a whole argument can contain
// a password that landed there by a slip.
func flagError(cmd *cobra.Command, err error) error {
	see := ": see `" + cmd.CommandPath() + " --help`"
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if e.GetSpecifiedShortnames() != "" {
			return usageErrorf("unknown flag -%s (long flags begin with two dashes)%s", e.GetSpecifiedName(), see)
		}
		return usageErrorf("unknown flag --%s%s", e.GetSpecifiedName(), see)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return usageErrorf("--%s needs a value%s", e.GetFlag().Name, see)
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return usageErrorf("--%s: %w", e.GetFlag().Name, valueError(err))
	}
	return usageErrorf("a flag is malformed%s", see)
}

// valueError returns what the flag's value says about an attempt to set it.
func valueError(err error) error {
	if e, ok := errors.AsType[*strconv.NumError](err); ok { // of pflag's own bool
		return fmt.Errorf("%s is not true or false", quoteValue(e.Num))
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return e.Unwrap()
	}
	return err
}
