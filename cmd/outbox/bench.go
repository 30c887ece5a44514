package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/measure/report"
)

const (
	// benchBudget is how long `outbox bench` measures by default. Setting up comes on top.
	benchBudget = 18 * time.Second
	// benchLeast is the least that says anything.
	benchLeast = time.Second
)

// benchFlags are the flags of `outbox bench`.
type benchFlags struct {
	database databaseFlags
	budget   duration
	html     string
	output   *choice
}

func newBenchCommand(a *app) *cobra.Command {
	f := &benchFlags{budget: duration(benchBudget)}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the outbox on your own server, beside what PostgreSQL itself can do",
		Long: `Measure the outbox on your own server: from commit to handler, working off a backlog, what publishers pay, and a worker
with nothing to do. Every figure but that of the idle worker stands beside its floor, a bare program with the same effect, measured
in the same run: absolute figures depend on the machine, the ratio is what the outbox costs. A ratio on the right side of 1 is
noise, or the bare program's lack of finesse.

It works in temporary databases (outbox_bench_…) that it creates and drops again, also after Ctrl-C, so the role needs
CREATEDB. Nothing else is touched, but the server has real work to do meanwhile: other users will notice. It takes less
than a minute, most of it for setting up, whatever --for says. The address must be a direct one, not that of a
transaction pooler. --for and --html are not taken from the environment.`,
		Example: `  outbox bench --database-url postgres://me:secret@db.example.com/postgres
  outbox bench --html report.html          the same with charts
  outbox bench -o json | jq '.latency[0].ratio_p50'`,
		Args: noArguments,
	}
	f.database.add(cmd)
	flags := cmd.Flags()
	flags.Var(&f.budget, "for", "about how long to measure; setting up comes on top")
	flags.StringVar(&f.html, "html", "", "also write a page with charts to this `file`")
	f.output = choiceFlag(cmd, "output", "o", "text", "how to print it", "text", "json")
	onlyAsFlags(flags, "for", "html")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.runBench(cmd, f) }
	return cmd
}

func (a *app) runBench(cmd *cobra.Command, f *benchFlags) error {
	addr, addrErr := a.address(cmd, &f.database)
	var budgetErr error
	if time.Duration(f.budget) < benchLeast {
		budgetErr = usageErrorf("--for %s is less than %s", &f.budget, benchLeast)
	}
	if err := errors.Join(addrErr, budgetErr, checkPage(cmd, f.html)); err != nil {
		return err
	}
	page, err := newPage(f.html)
	if err != nil {
		return err
	}
	defer page.discard()
	results, err := a.measure(cmd.Context(), addr, time.Duration(f.budget))
	if ctxErr := cmd.Context().Err(); err != nil && ctxErr != nil {
		return ctxErr // what broke off is of no interest
	}
	if err != nil {
		return explainBench(err, addr)
	}
	r := report.Report{Results: results, Command: "outbox bench --for " + f.budget.String()}
	return errors.Join(page.write(r), outputError(writeBench(a.stdout, r, f.output.value)))
}

// measure runs the plan on a server.
func (a *app) measure(ctx context.Context, addr *address, budget time.Duration) (results measure.Results, err error) {
	config := addr.config.Copy()
	config.ConnConfig = addr.connConfig("bench")
	server := measure.NewServer(config)
	if err := server.CheckPrivileges(ctx); err != nil {
		return results, err
	}
	if results.Environment, err = server.Environment(ctx, buildVersion()); err != nil {
		return results, err
	}
	free, err := server.FreeConnections(ctx)
	if err != nil {
		return results, err
	}
	plan, err := newBenchPlan(server, free)
	if err != nil {
		return results, err
	}
	var bar *benchBar
	if isTerminal(a.stderr) {
		bar = newBenchBar(a.stderr, budget)
	}
	defer bar.end()
	err = plan.run(ctx, budget, bar, &results)
	return results, err
}

func writeBench(w io.Writer, r report.Report, output string) error {
	if output == "json" {
		return writeJSON(w, r.Results)
	}
	return r.WriteText(w)
}

// explainBench says what to do about an error of the measuring.
func explainBench(err error, addr *address) error {
	user := addr.config.ConnConfig.User
	switch {
	case errors.Is(err, measure.ErrCreateDB):
		return explain(err, "user %q may not create databases, and bench works in temporary ones: ALTER ROLE %s CREATEDB, or use another user in %s",
			user, pgx.Identifier{user}.Sanitize(), addr.source)
	case errors.Is(err, outbox.ErrPooled), lostStatement(err):
		return explain(err, "%s leads through a pooler, which is not what to measure: use the server's direct address in %s", addr.server(), addr.source)
	}
	return addr.explain(explainPrivilege(err, user))
}

// checkPage says what is wrong with a file for the page before a minute has been spent.
func checkPage(cmd *cobra.Command, path string) error {
	if path == "" {
		if cmd.Flags().Changed("html") {
			return usageErrorf("--html is empty")
		}
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return usageErrorf("--html: %s is a folder", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return usageErrorf("--html: %w", err)
	}
	if info, err = os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return usageErrorf("--html: there is no folder %s", filepath.Dir(path))
	}
	return nil
}

// page is a file that appears whole or not at all. A nil one is none.
type page struct {
	path string
	file *os.File // beside it until it is whole
}

// newPage begins it, so that a folder that cannot be written to shows before the measuring.
func newPage(path string) (*page, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".outbox-bench-*.html")
	if err != nil {
		if of, ok := errors.AsType[*fs.PathError](err); ok {
			err = of.Err // its path is that of the temporary file
		}
		return nil, fmt.Errorf("--html: cannot write to folder %s: %w", filepath.Dir(path), err)
	}
	return &page{path, file}, nil
}

func (p *page) write(r report.Report) error {
	if p == nil {
		return nil
	}
	err := errors.Join(r.WriteHTML(p.file), p.file.Chmod(0o644), p.file.Close())
	if err == nil {
		err = os.Rename(p.file.Name(), p.path)
	}
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}

// discard removes what was not written to the end.
func (p *page) discard() {
	if p != nil {
		_ = p.file.Close()           // mostly closed already
		_ = os.Remove(p.file.Name()) // mostly renamed already
	}
}
