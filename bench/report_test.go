package bench

import (
	"context"
	"os"
	"os/exec"
	"strings"

	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/measure/report"
)

// reportVariable has RESULTS.md written into the folder that it names, with the command that it was made by in
// commandVariable.
const (
	reportVariable  = "OUTBOX_BENCH_REPORT"
	commandVariable = "OUTBOX_BENCH_COMMAND"
)

// collected is what the last round of every benchmark has measured.
var collected measure.Results

// writeReport writes what was collected, where that is wanted.
func writeReport() error {
	folder, server := os.Getenv(reportVariable), shared.opened()
	if folder == "" || server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if collected.Environment, err = server.Environment(ctx, commit(ctx)); err != nil {
		return err
	}
	return report.Report{Results: collected, Command: os.Getenv(commandVariable)}.WriteMarkdown(folder)
}

// commit names the source that was measured.
func commit(ctx context.Context) string {
	text, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "of unknown version"
	}
	return strings.TrimSpace(string(text))
}
