package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitClean   = 0
	exitFailure = 1
	exitUsage   = 2
)

// app is what every command gets from the process around it.
type app struct {
	environment    map[string]string
	stdin          io.Reader
	stdout, stderr io.Writer
	args           []string
	cobraOut       cobraOutput // stdout, for what cobra writes

	fromEnvironment map[string]bool // flags by name that a variable has set
	started         bool            // the command line was right, and the command has begun
}

// run runs one command line and returns the exit code. environ is in the form of os.Environ; only what
// pgx (PG* and the files that they name) and the SDK of OpenTelemetry (OTEL_*) read themselves comes from the process's own.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{
		environment:     parseEnvironment(environ),
		stdin:           stdin,
		stdout:          stdout,
		stderr:          stderr,
		args:            args,
		cobraOut:        cobraOutput{w: stdout},
		fromEnvironment: make(map[string]bool),
	}
	root := newRootCommand(a)
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	cmd, err := root.ExecuteContextC(ctx)
	if a.cobraOut.err != nil {
		a.started, err = true, a.cobraOut.err // nothing is wrong with the command line
	}
	return a.exit(ctx, cmd, err)
}

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "outbox",
		Short: "A transactional outbox for PostgreSQL",
		Long: `A transactional outbox for PostgreSQL: a service writes an event in the same transaction as its own rows, and after
the commit outbox delivers it, within about a millisecond, at least once, in order per aggregate.`,
		Example: `  outbox demo                                         see it work; no database needed
  export DATABASE_URL=postgres://app:secret@db.example.com/billing
  outbox migrate up                                   make the schema
  outbox run --sink stdout                            print every event as it is committed
  outbox run --sink https://example.com/events        or post it
  outbox publish --aggregate-type invoice --aggregate-id 018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091 \
                 --type InvoicePaid --data '{"amount": 4200}'
  outbox status                                       what waits, what failed, who works`,
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.readEnvironment(cmd); err != nil {
				return err
			}
			a.started = true
			return nil
		},
	}
	root.SetIn(a.stdin)
	root.SetOut(&a.cobraOut)
	root.SetErr(a.stderr)
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.SetErr(io.Discard) // where cobra would complain of the output, besides exit
		help(cmd, args)
	})
	root.SetFlagErrorFunc(a.flagErrors)
	root.SetVersionTemplate("outbox {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", "FlagUsagesWrapped 120") + environmentHelp)
	root.AddCommand(
		newMigrateCommand(a),
		newRunCommand(a),
		newPublishCommand(a),
		newStatusCommand(a),
		newListCommand(a),
		newDeadCommand(a),
		newArchiveCommand(a),
		newAuditCommand(a),
		newBenchCommand(a),
		newDemoCommand(a),
		newVersionCommand(a),
	)
	root.SetHelpCommand(newHelpCommand())
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		group(completion) // which cobra leaves without a complaint about a shell that it does not know
	}
	return root
}

// group makes cmd one that only holds others.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	var names []string
	for _, child := range cmd.Commands() {
		names = append(names, child.Name())
	}
	cmd.Args = noArguments
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return usageErrorf("%s needs one of the commands %s", commandName(cmd), strings.Join(names, ", "))
	}
	return cmd
}

// newHelpCommand replaces cobra's, which calls a command that does not exist a success.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(topic, args)
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}

// commandName is the name of a command without the program's.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usageErrorf("%s takes flags only, and got the argument %s", commandName(cmd), quoteHarmless(args[0]))
}
