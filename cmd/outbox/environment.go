package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// environmentHelp ends the help of every command.
const environmentHelp = `{{if .HasAvailableFlags}}
Environment:
  A flag can also be given by a variable, --connect-timeout by OUTBOX_CONNECT_TIMEOUT. The flag wins; an empty
  variable is as good as none. What belongs to one call has no variable: --yes, --all, --to, a filter and the like.
{{end}}`

const variablePrefix = "OUTBOX_"

// flagOnly marks a flag that no variable can set.
const flagOnly = "outbox_flag_only"

// onlyAsFlags keeps the environment away from flags that belong to one call, such as the confirmation of a
// deletion: a variable that was left behind must not give it. One that is set is refused: a filter passed over in silence would take
// more than was meant.
func onlyAsFlags(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := flags.SetAnnotation(name, flagOnly, nil); err != nil {
			panic(err) // there is no such flag: a slip in the code
		}
	}
}

func parseEnvironment(environ []string) map[string]string {
	variables := make(map[string]string, len(environ))
	for _, entry := range environ {
		if name, value, found := strings.Cut(entry, "="); found {
			variables[name] = value
		}
	}
	return variables
}

func variableOf(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment sets the flags of cmd that the command line left open. An empty variable is as good as none, as with
// PostgreSQL's own.
func (a *app) readEnvironment(cmd *cobra.Command) error {
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		_, excluded := f.Annotations[flagOnly]
		value := a.environment[variableOf(f.Name)]
		if f.Changed || value == "" || f.Name == "help" {
			return
		}
		if excluded {
			errs = append(errs, usageErrorf("%s is set, and --%s counts only as a flag: unset it, and give --%s if it is meant", variableOf(f.Name), f.Name, f.Name))
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			errs = append(errs, usageErrorf("%s: %w", variableOf(f.Name), valueError(err)))
			return
		}
		a.fromEnvironment[f.Name] = true
	})
	return errors.Join(errs...)
}

// spelled names a flag as it was given: by itself or by its variable.
func (a *app) spelled(flag string) string {
	if a.fromEnvironment[flag] {
		return variableOf(flag)
	}
	return "--" + flag
}
