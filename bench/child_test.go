package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

const (
	// childTask makes this test binary a process that does one thing, for what is measured of a whole process.
	childTask = "OUTBOX_BENCH_CHILD"
	// childAddress is the address of the server, and childDatabase the name of a database, if there is one.
	childAddress  = "OUTBOX_BENCH_CHILD_ADDRESS"
	childDatabase = "OUTBOX_BENCH_CHILD_DATABASE"
)

// childCommand returns a process that does a task.
func childCommand(ctx context.Context, task, address string, env ...string) *exec.Cmd {
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	cmd := exec.CommandContext(ctx, executable)
	cmd.Env = append(append(os.Environ(), childTask+"="+task, childAddress+"="+address), env...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	return cmd
}

// child does a task and returns its exit code.
func child(task string) (code int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	config, err := pgxpool.ParseConfig(os.Getenv(childAddress))
	if err == nil {
		switch task {
		case idleTask:
			err = idleChild(ctx, measure.NewServer(config))
		case memoryTask:
			config.ConnConfig.Database = os.Getenv(childDatabase)
			err = memoryChild(ctx, config)
		default:
			err = fmt.Errorf("unknown task %q", task)
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s: %v\n", task, err)
		return 1
	}
	return 0
}
