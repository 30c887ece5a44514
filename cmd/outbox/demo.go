package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox/internal/demo"
)

// demoRate is a number of events a second.
type demoRate float64

func (r *demoRate) String() string { return strconv.FormatFloat(float64(*r), 'g', -1, 64) }
func (r *demoRate) Type() string   { return "number" }

func (r *demoRate) Set(s string) error {
	value, err := strconv.ParseFloat(s, 64)
	if err != nil || !(value > 0 && value <= demo.MaxRate) {
		return fmt.Errorf("%s is not a number above 0 and at most %d", quoteValue(s), demo.MaxRate)
	}
	*r = demoRate(value)
	return nil
}

func newDemoCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch events travel from a transaction to a handler; no database needed",
		Long: `Watch events travel from a transaction to a handler. No database is needed: a private, temporary PostgreSQL is
started, and removed at the end.

A small shop publishes events of orders, payments and shipments; handlers publish some more. Every delivery is shown with
the time from the commit to the handler. A few handlers fail, so that retries and one dead letter can be seen. The
summary says what was promised and checked. The flags are not taken from the environment.`,
		Example: `  outbox demo                                        until Ctrl-C
  outbox demo --for 10s --rate 100
  outbox demo --database-url postgres://localhost    in a temporary database there`,
		Args: noArguments,
	}
	var length duration
	rate := demoRate(demo.DefaultRate)
	var databaseURL string
	flags := cmd.Flags()
	flags.Var(&length, "for", "stop after this time (default until Ctrl-C)")
	flags.Lookup("for").DefValue = ""
	flags.Var(&rate, "rate", "events a second, bursts aside")
	flags.StringVar(&databaseURL, "database-url", "", "a server to use instead, in a database with a random name that is made and dropped")
	onlyAsFlags(flags, "for", "rate", "database-url") // a variable is meant for the commands that work in earnest
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, err := demo.Run(cmd.Context(), demo.Options{
			Out: a.stdout, For: time.Duration(length), Rate: float64(rate), DatabaseURL: databaseURL,
		})
		return err
	}
	return cmd
}
