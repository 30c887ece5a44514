package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-9a365b49/outbox/migrations"
)

// nowhere is an address that no usage error gets as far as.
const nowhere = "DATABASE_URL=postgres://ali:sesame@127.0.0.1:1/cave"

func TestWrongCommandLine(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		line    string // a ␣ is a space within an argument
		environ []string
		want    string
	}{
		{"unknown command", "rnu", nil, `unknown command "rnu", did you mean run?`},
		{"unknown command with flags", "rnu --sink stdout", nil, `unknown command "rnu"`},
		{"address for a command", "postgres://ali:sesame@cave/db", nil, "unknown command (not shown)"},
		{"unknown subcommand", "migrate pu --all", nil, `unknown command "pu", did you mean up?: see ` + "`outbox migrate --help`"},
		{"no subcommand", "migrate", nil, "migrate needs one of the commands down, notify, sql, status, up"},
		{"help on what is unknown", "help rnu", nil, `unknown command "rnu"`},
		{"completion of what is unknown", "completion csh", nil, `unknown command "csh"`},
		{"argument", "status now", nil, `status takes flags only, and got the argument "now"`},
		{"address for an argument", "status postgres://ali:sesame@cave/db", nil, "got the argument (not shown)"},
		{"unknown flag", "run --snik stdout", nil, "unknown flag --snik: see `outbox run --help`"},
		{"unknown flag with a value", "run --databse-url=postgres://ali:sesame@cave/db", nil, "unknown flag --databse-url"},
		{"one dash", "run -database-url=postgres://ali:sesame@cave/db", nil, "long flags begin with two dashes"},
		{"malformed flag", "run --=postgres://ali:sesame@cave/db", nil, "a flag is malformed"},
		{"flag without its value", "run --sink", nil, "--sink needs a value"},
		{"flag that is not a bool", "migrate down --all=sure", nil, `--all: "sure" is not true or false`},
		{"flag that is not an id", "dead list --after x", nil, `--after: "x" is not the id of an event, which is a whole number`},
		{"address for an id", "list --after postgres://ali:sesame@cave/db", nil, "--after: (not shown) is not the id of an event"},

		{"no sink", "run", nil, "run needs --sink: stdout, discard, or"},
		{"unknown sink", "run --sink kafka", nil, `--sink: unknown sink "kafka"`},
		{"address for a sink", "run --sink postgres://ali:sesame@cave/db", nil, "unknown sink"},
		{"sink without a host", "run --sink http:///events", nil, "--sink: webhook sink: the URL has no host"},
		{"malformed secret", "run --sink http://h/ --webhook-secret sesame", nil, `must be "whsec_"`},
		{"empty secret", "run --sink http://h/ --webhook-secret=", nil, "--webhook-secret is empty"},
		{"secret file that is not there", "run --sink http://h/ --webhook-secret-file /nonexistent/secret", nil, "--webhook-secret-file: open /nonexistent/secret"},
		{"empty secret file", "run --sink http://h/ --webhook-secret-file " + empty, nil, "holds no secret"},
		{
			"secret for another sink", "run --sink stdout --webhook-secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", nil,
			"--webhook-secret is only for an http:// or https:// sink, and --sink is stdout",
		},
		{"malformed secret for another sink", "run --sink discard --webhook-secret sesame", nil, "--webhook-secret is only for an http:// or https:// sink"},
		{"secret file for another sink", "run --sink discard --webhook-secret-file " + empty, nil, "--webhook-secret-file is only for"},
		{
			"secret for another sink in a variable", "run",
			[]string{"OUTBOX_SINK=stdout", "OUTBOX_WEBHOOK_SECRET=sesame"},
			"OUTBOX_WEBHOOK_SECRET is only for an http:// or https:// sink, and OUTBOX_SINK is stdout",
		},
		{"source for a sink that shows none", "run --sink discard --source /billing", nil, "--source is only for a sink that shows it, and --sink is discard"},
		{"malformed source", "run --sink stdout --source a␣b", nil, "--source: source is not a URI"},

		{"zero", "run --sink stdout --batch-size 0", nil, `--batch-size: "0" is not a whole number between 1 and`},
		{"negative", "run --sink stdout --concurrency -3", nil, `--concurrency: "-3" is not`},
		{"not a number", "run --sink stdout --lane-cap many", nil, `--lane-cap: "many" is not`},
		{"too large a number", "run --sink stdout --max-attempts 99999999999", nil, `--max-attempts: "99999999999" is not`},
		{"number for a duration", "run --sink stdout --poll-interval 5", nil, `--poll-interval: "5" is not a duration greater than zero, such as`},
		{"no duration", "run --sink stdout --shutdown-grace 0s", nil, `--shutdown-grace: "0s" is not`},
		{"too large a size", "run --sink stdout --max-batch-bytes 2GiB", nil, `--max-batch-bytes: "2GiB" is not a size`},
		{"unknown unit", "run --sink stdout --max-batch-bytes 4MB", nil, `--max-batch-bytes: "4MB" is not a size`},
		{"unknown log level", "run --sink stdout --log-level verbose", nil, `--log-level: "verbose" is not one of trace, debug, info, warn, error`},
		{"unknown log format", "run --sink stdout --log-format xml", nil, `--log-format: "xml" is not one of auto, json, console`},
		{"unknown ordering", "run --sink stdout --ordering total", nil, `--ordering: "total" is not one of per-aggregate, none`},
		{"unknown output", "status -o yaml", nil, `--output: "yaml" is not one of text, json`},
		{"batch sizes the wrong way round", "run --sink stdout --batch-size 100 --max-batch-size 10", nil, "--batch-size 100 is more than --max-batch-size 10"},
		{"poll intervals the wrong way round", "run --sink stdout --degraded-poll-interval 2s", nil, "--degraded-poll-interval 2s is longer than --poll-interval 1s"},

		{"variable that is not a number", "run --sink stdout", []string{"OUTBOX_CONCURRENCY=many"}, `OUTBOX_CONCURRENCY: "many" is not a whole number`},
		{"variable that is no level", "run --sink stdout", []string{"OUTBOX_LOG_LEVEL=loud"}, `OUTBOX_LOG_LEVEL: "loud" is not one of`},
		{"two variables", "run", []string{"OUTBOX_LANE_CAP=x", "OUTBOX_ORDERING=y"}, `OUTBOX_ORDERING: "y"`},
		{"variable that is no sink", "run", []string{"OUTBOX_SINK=kafka"}, `OUTBOX_SINK: unknown sink "kafka"`},
		{"variable against a flag", "run --sink stdout --batch-size 9", []string{"OUTBOX_MAX_BATCH_SIZE=8"}, "--batch-size 9 is more than OUTBOX_MAX_BATCH_SIZE 8"},

		{"empty address", "status --database-url=", nil, "--database-url is empty"},
		{"address of another kind", "status --database-url mysql://ali:sesame@cave/db", nil, "--database-url: not a database address, which is postgres://user:password@host:5432/database"},
		{"malformed address", "status --database-url postgres://ali:ses@me@[cave/db", nil, "--database-url: not a database address"},
		{"password that is not quoted", "status --database-url host=cave␣password=open␣sesame␣dbname=db", nil, "--database-url: not a database address"},
		{"password with a slash", "status --database-url postgres://ali:open/sesame@cave/db", nil, "--database-url: invalid port"},
		{"address with a wrong setting", "status --database-url postgres://ali:sesame@cave/db?sslmode=maybe", nil, "--database-url: failed to configure TLS (sslmode is invalid)"},
		{"malformed address in OUTBOX_DATABASE_URL", "status", []string{"OUTBOX_DATABASE_URL=ali:sesame@cave"}, "OUTBOX_DATABASE_URL: not a database address"},
		{"malformed address in DATABASE_URL", "status", []string{"DATABASE_URL=ali:sesame@cave"}, "DATABASE_URL: not a database address"},
		{"admin address without a port", "run --sink stdout --admin-addr localhost", nil, `--admin-addr: "localhost" is not an address, such as :9090`},
		{"admin address with a port that is none", "run --sink stdout --admin-addr localhost:http2000", nil, `--admin-addr: "localhost:http2000" has no port`},
		{"malformed listen address", "run --sink stdout --listen-url ali:sesame@cave", nil, "--listen-url: not a database address"},
		{"no address", "status", []string{"DATABASE_URL="}, "no database given: set --database-url, OUTBOX_DATABASE_URL, DATABASE_URL, or PGHOST"},
		{"a password alone", "status", []string{"DATABASE_URL=", "PGPASSWORD=sesame"}, "no database given"},

		{"event without most of it", "publish --data 1", nil, "publish: --aggregate-type, --aggregate-id, --type missing"},
		{"event without data", "publish --aggregate-type a --type E --aggregate-id " + invoice, nil, "publish: --data missing"},
		{"aggregate id that is no UUID", "publish --aggregate-type a --aggregate-id 7 --type E --data 1", nil, `--aggregate-id: "7" is not a UUID`},
		{"version zero", "publish --version 0", nil, `--version: "0" is not a whole number`},
		{"deletion that is not confirmed", "migrate down --all", nil, "every event in it is lost: add --yes to confirm"},
		{"deletion confirmed by a variable", "migrate down --all", []string{"OUTBOX_YES=true"}, "OUTBOX_YES is set, and --yes counts only as a flag"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(tt.line)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "␣", " ")
			}
			execute(t, "", append([]string{nowhere}, tt.environ...), args...).fails(t, exitUsage, tt.want)
		})
	}
}

func TestSeveralMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, line string
		environ    []string
		want       []string
	}{
		{
			"values of flags", "run --batch-size 0 --poll-interval 5 --sink stdout --log-level=loud --lane-cap 7", nil,
			[]string{`--batch-size: "0" is not`, `; --poll-interval: "5" is not`, `; --log-level: "loud" is not`},
		},
		{
			"a value and a flag that does not exist", "run --batch-size 0 --snik stdout --concurrency 0", nil,
			[]string{`--batch-size: "0" is not`, "; unknown flag --snik"},
		},
		{
			"what does not go together, and the rest of run",
			"run --batch-size 100 --max-batch-size 10 --degraded-poll-interval 2s --listen-url ali:sesame@cave --source a\tb --webhook-secret=",
			[]string{"DATABASE_URL=ali:sesame@cave"},
			[]string{
				"DATABASE_URL: not a database address", "--batch-size 100 is more than", "--degraded-poll-interval 2s is longer than",
				"--listen-url: not a database address", "--source: source is not a URI", "--webhook-secret is empty", "run needs --sink",
			},
		},
		{
			"a sink that is not one, and no address", "run --sink kafka --webhook-secret-file /nonexistent/secret",
			[]string{"DATABASE_URL="},
			[]string{"no database given", `unknown sink "kafka"`, "open /nonexistent/secret"},
		},
		{
			"of an event", "publish --aggregate-id 7 --data 1",
			[]string{"DATABASE_URL=ali:sesame@cave"},
			[]string{"DATABASE_URL: not a database address", "publish: --aggregate-type, --type missing", `--aggregate-id: "7" is not a UUID`},
		},
	} {
		t.Run("are reported at once: "+tt.name, func(t *testing.T) {
			t.Parallel()
			execute(t, "", append([]string{nowhere}, tt.environ...), strings.Split(tt.line, " ")...).fails(t, exitUsage, tt.want...)
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()

	t.Run("without arguments it is shown", func(t *testing.T) {
		t.Parallel()
		o := execute(t, "", nil).succeeds(t)
		if !strings.Contains(o.stdout, "outbox run --sink stdout") || !strings.Contains(o.stdout, "OUTBOX_CONNECT_TIMEOUT") {
			t.Errorf("no example, or nothing about variables: %s", o.stdout)
		}
	})
	t.Run("every command has examples", func(t *testing.T) {
		t.Parallel()
		everyCommand(t, func(cmd *cobra.Command) {
			if cmd.Example == "" || cmd.Short == "" {
				t.Errorf("%s has no example, or no description", cmd.CommandPath())
			}
			o := execute(t, "", nil, append(strings.Fields(cmd.CommandPath())[1:], "--help")...).succeeds(t)
			if !strings.Contains(o.stdout, cmd.Example) {
				t.Errorf("the help of %s has no example", cmd.CommandPath())
			}
		})
	})
	t.Run("a flag names its value in one word, and a switch has none", func(t *testing.T) {
		t.Parallel()
		everyCommand(t, func(cmd *cobra.Command) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				value, _ := pflag.UnquoteUsage(f) // what stands in backquotes, wherever that is
				if strings.ContainsAny(value, " ") || (f.Value.Type() == "bool") != (value == "") {
					t.Errorf("%s --%s %s", cmd.CommandPath(), f.Name, value)
				}
			})
		})
	})
	t.Run("values are this program's own types, whose errors are for people", func(t *testing.T) {
		t.Parallel()
		everyCommand(t, func(cmd *cobra.Command) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				switch kind := reflect.TypeOf(f.Value).String(); kind {
				case "*pflag.stringValue", "*pflag.stringArrayValue", "*pflag.boolValue": // which take any string; bool: see valueError
				default:
					if strings.HasPrefix(kind, "*pflag.") {
						t.Errorf("%s --%s is a %s", cmd.CommandPath(), f.Name, kind)
					}
				}
			})
		})
	})
	t.Run("no flag shows an address that was meant for another", func(t *testing.T) {
		t.Parallel()
		everyCommand(t, func(cmd *cobra.Command) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				for _, value := range []string{"postgres://ali:sesame@cave/db", "user=ali password=sesame", "whsec_sesame"} {
					err := cmd.Flags().Set(f.Name, value)
					if err != nil {
						err = valueError(errors.Unwrap(err))
					}
					if err != nil && strings.Contains(err.Error(), "sesame") {
						t.Errorf("%s --%s: %v", cmd.CommandPath(), f.Name, err)
					}
				}
			})
		})
	})
	t.Run("help on a command is its --help", func(t *testing.T) {
		t.Parallel()
		long := execute(t, "", nil, "migrate", "up", "--help").succeeds(t)
		if o := execute(t, "", nil, "help", "migrate", "up").succeeds(t); o.stdout != long.stdout {
			t.Errorf("%q\nis not\n%q", o.stdout, long.stdout)
		}
	})
	t.Run("completion knows the words of a flag", func(t *testing.T) {
		t.Parallel()
		o := execute(t, "", nil, "__complete", "run", "--log-level", "")
		if o.code != exitClean || !strings.Contains(o.stdout, "\nwarn\n") {
			t.Errorf("exit code %d, %q", o.code, o.stdout)
		}
		if o := execute(t, "", nil, "completion", "bash").succeeds(t); !strings.Contains(o.stdout, "__start_outbox") {
			t.Error("no script for bash")
		}
	})
}

func everyCommand(t *testing.T, do func(*cobra.Command)) {
	t.Helper()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "completion" || cmd.Name() == "help" {
			return
		}
		do(cmd)
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRootCommand(&app{}))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	o := execute(t, "", nil, "version").succeeds(t)
	if !strings.HasPrefix(o.stdout, "outbox "+buildVersion()+"\ngo     go1.") || !strings.Contains(o.stdout, fmt.Sprintf("\nschema %d\n", migrations.Latest)) {
		t.Errorf("%q", o.stdout)
	}
	if o := execute(t, "", nil, "--version").succeeds(t); o.stdout != "outbox "+buildVersion()+"\n" {
		t.Errorf("%q", o.stdout)
	}
}

func TestRunFlags(t *testing.T) {
	t.Parallel()

	t.Run("have the defaults of the design", func(t *testing.T) {
		t.Parallel()
		cmd := newRunCommand(&app{})
		for name, want := range map[string]string{
			"batch-size": "50", "max-batch-size": "1000", "max-batch-bytes": "4MiB", "concurrency": "64", "lane-cap": "16", "durable-marks": "false", "admin-addr": "", "audit": "false", "archive-at": "", "archive-zone": "UTC", "retention": "720h0m0s",
			"handler-timeout": "30s", "shutdown-grace": "30s", "max-attempts": "10", "poll-interval": "1s",
			"degraded-poll-interval": "250ms", "connect-timeout": "10s", "ordering": "per-aggregate", "log-level": "info",
		} {
			if f := cmd.Flags().Lookup(name); f == nil || f.DefValue != want {
				t.Errorf("--%s: %+v, want %s", name, f, want)
			}
		}
	})
	t.Run("reach the worker, and so do their variables", func(t *testing.T) {
		t.Parallel()
		values := map[string]string{
			"batch-size": "51", "max-batch-size": "1001", "max-batch-bytes": "5MiB", "concurrency": "65", "lane-cap": "17", "durable-marks": "true", "audit": "true", "archive-at": "04:05", "archive-zone": "Asia/Seoul", "retention": "49h",
			"handler-timeout": "31s", "shutdown-grace": "32s", "max-attempts": "11", "poll-interval": "2s",
			"degraded-poll-interval": "251ms", "connect-timeout": "11s", "ordering": "none", "listen-url": "postgres://direct/db",
			"database-url": "postgres://main/db",
		}
		byFlags, byVariables := []string{}, map[string]string{}
		for name, value := range values {
			byFlags = append(byFlags, "--"+name+"="+value)
			byVariables[variableOf(name)] = value
		}
		for _, given := range []struct {
			args        []string
			environment map[string]string
		}{{byFlags, nil}, {nil, byVariables}} {
			a := &app{environment: given.environment, fromEnvironment: map[string]bool{}}
			cmd := &cobra.Command{Use: "run"}
			f := addRunFlags(cmd)
			if err := cmd.ParseFlags(given.args); err != nil {
				t.Fatal(err)
			}
			if err := a.readEnvironment(cmd); err != nil {
				t.Fatal(err)
			}
			addr, err := a.address(cmd, &f.database)
			if err != nil {
				t.Fatal(err)
			}
			c, err := a.workerConfig(cmd, f, addr)
			if err != nil {
				t.Fatal(err)
			}
			got := []any{
				c.BatchSize, c.MaxBatchSize, c.MaxBatchBytes, c.Concurrency, c.LaneCap, c.HandlerTimeout.String(), c.ShutdownGrace.String(),
				c.MaxAttempts, c.PollInterval.String(), c.DegradedPollInterval.String(), c.ConnectTimeout.String(), int(c.Ordering), c.ListenURL, c.DatabaseURL, c.DurableMarks, c.Audit, c.ArchiveAt, c.ArchiveZone, c.Retention.String(),
			}
			want := []any{
				51, 1001, 5 << 20, 65, 17, "31s", "32s", 11, "2s", "251ms", "11s", 1, "postgres://direct/db", "postgres://main/db", true, true, "04:05", "Asia/Seoul", "49h0m0s",
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("value %d is %v, want %v", i, got[i], want[i])
				}
			}
		}
	})
	t.Run("that were left open give way to those that were set", func(t *testing.T) {
		t.Parallel()
		for line, want := range map[string][4]string{
			"--batch-size 2000":                        {"2000", "2000", "1s", "250ms"},
			"--max-batch-size 20":                      {"20", "20", "1s", "250ms"},
			"--poll-interval 100ms":                    {"50", "1000", "100ms", "100ms"},
			"--batch-size 7 --max-batch-size 7":        {"7", "7", "1s", "250ms"},
			"--log-level= --ordering= --log-format=":   {"50", "1000", "1s", "250ms"},
			"--max-batch-size 60 --poll-interval 300s": {"50", "60", "5m0s", "250ms"},
		} {
			a := &app{environment: map[string]string{"PGHOST": "h"}, fromEnvironment: map[string]bool{}}
			cmd := &cobra.Command{Use: "run"}
			f := addRunFlags(cmd)
			if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
				t.Fatal(err)
			}
			addr, err := a.address(cmd, &f.database)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.workerConfig(cmd, f, addr); err != nil {
				t.Fatal(err)
			}
			got := [4]string{f.batchSize.String(), f.maxBatchSize.String(), f.poll.String(), f.degradedPoll.String()}
			if got != want || f.logLevel.value != "info" || f.ordering.value != "per-aggregate" || f.logFormat.value != "auto" {
				t.Errorf("%s: %v, want %v", line, got, want)
			}
		}
	})
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, environment map[string]string, args ...string) (*pflag.FlagSet, *app) {
		t.Helper()
		a := &app{environment: environment, fromEnvironment: map[string]bool{}}
		cmd := &cobra.Command{Use: "run"}
		addRunFlags(cmd)
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		if err := a.readEnvironment(cmd); err != nil {
			t.Fatal(err)
		}
		return cmd.Flags(), a
	}
	t.Run("a flag wins over its variable", func(t *testing.T) {
		t.Parallel()
		flags, a := read(t, map[string]string{"OUTBOX_LANE_CAP": "5"}, "--lane-cap", "6")
		if got := flags.Lookup("lane-cap").Value.String(); got != "6" || a.spelled("lane-cap") != "--lane-cap" {
			t.Errorf("%s by %s", got, a.spelled("lane-cap"))
		}
	})
	t.Run("an empty variable is none", func(t *testing.T) {
		t.Parallel()
		flags, _ := read(t, map[string]string{"OUTBOX_LANE_CAP": "", "OUTBOX_LOG_LEVEL": ""})
		if flags.Lookup("lane-cap").Changed || flags.Lookup("log-level").Value.String() != "info" {
			t.Error("an empty variable was taken for a value")
		}
	})
	t.Run("only what belongs to one call has no variable", func(t *testing.T) {
		t.Parallel()
		var excluded []string
		listFlags, actFlags := []string{"after", "limit", "newest"}, []string{"all", "dry-run", "yes"}
		everyCommand(t, func(cmd *cobra.Command) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if _, found := f.Annotations[flagOnly]; found {
					excluded = append(excluded, commandName(cmd)+" --"+f.Name)
				}
			})
		})
		want := []string{
			"bench --for", "bench --html", "demo --database-url", "demo --for", "demo --rate", "migrate down --all", "migrate down --yes",
			"publish --aggregate-id", "publish --aggregate-type", "publish --causation-id", "publish --correlation-id",
			"publish --data", "publish --type", "publish --version", "list --state", "archive --dry-run", "archive --older-than", "archive --to", "archive --require-audit", "audit backfill --dry-run",
		}
		for command, flags := range map[string][]string{
			"dead list": listFlags, "list": listFlags, "dead retry": actFlags, "dead discard": append([]string{"to"}, actFlags...),
		} {
			for _, name := range append(flags, filterFlagNames...) {
				want = append(want, command+" --"+name)
			}
		}
		slices.Sort(excluded)
		slices.Sort(want)
		if !slices.Equal(excluded, want) {
			t.Errorf("%q\nwant %q", excluded, want)
		}
	})
}

func TestAddressPrecedence(t *testing.T) {
	t.Parallel()
	all := map[string]string{
		"OUTBOX_DATABASE_URL": "postgres://outbox/db", "DATABASE_URL": "postgres://plain/db", "PGHOST": "pg",
	}
	without := func(names ...string) map[string]string {
		left := map[string]string{}
		for name, value := range all {
			left[name] = value
		}
		for _, name := range names {
			delete(left, name)
		}
		return left
	}
	for _, tt := range []struct {
		name, source, url string
		environment       map[string]string
		args              []string
	}{
		{"flag", "--database-url", "postgres://flag/db", all, []string{"--database-url", "postgres://flag/db"}},
		{"OUTBOX_DATABASE_URL", "OUTBOX_DATABASE_URL", "postgres://outbox/db", all, nil},
		{"DATABASE_URL", "DATABASE_URL", "postgres://plain/db", without("OUTBOX_DATABASE_URL"), nil},
		{"PG*", "the PG* variables", "postgres://", without("OUTBOX_DATABASE_URL", "DATABASE_URL"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := &app{environment: tt.environment, fromEnvironment: map[string]bool{}}
			cmd := &cobra.Command{Use: "x"}
			var db databaseFlags
			db.add(cmd)
			if err := cmd.ParseFlags(tt.args); err != nil {
				t.Fatal(err)
			}
			if err := a.readEnvironment(cmd); err != nil {
				t.Fatal(err)
			}
			addr, err := a.address(cmd, &db)
			if err != nil {
				t.Fatal(err)
			}
			if addr.source != tt.source || addr.url != tt.url {
				t.Errorf("%s by %s", addr.url, addr.source)
			}
		})
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]size{"1": 1, "1536": 1536, "2KiB": 2048, "4 MiB": 4 << 20, "1GiB": 1 << 30} {
		var z size
		if err := z.Set(text); err != nil || z != want {
			t.Errorf("%q is %d, %v", text, z, err)
		}
		var again size
		if err := again.Set(z.String()); err != nil || again != z {
			t.Errorf("%d is printed as %s, which is %d, %v", z, &z, again, err)
		}
	}
}
