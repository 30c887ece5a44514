package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/measure"
)

const (
	// memoryTask is the child that is a worker whose handlers block at first.
	memoryTask = "memory"
	// memoryBacklog is how many events are pending.
	memoryBacklog = 1_000_000
	// memoryBlocked is how long handlers block, and memoryDrain how long the drain is watched after that.
	memoryBlocked = 6 * time.Second
	memoryDrain   = 6 * time.Second
)

// BenchmarkMemory measures the resident size of a worker with a backlog: see the package's documentation.
func BenchmarkMemory(b *testing.B) {
	if _, err := status("self"); err != nil {
		b.Skipf("needs Linux's /proc: %v", err)
	}
	server, address := shared.open(b)
	for _, events := range []int{0, memoryBacklog} {
		for _, aggregates := range []int{1, 1_000_000} {
			if events == 0 && aggregates > 1 {
				continue
			}
			b.Run(fmt.Sprintf("events=%d/aggregates=%d", events, aggregates), func(b *testing.B) {
				last := measure.Memory{Events: events, Aggregates: aggregates}
				rounds(b, func(ctx context.Context) (m metrics, err error) {
					last.Blocked, last.Peak, err = memoryOf(ctx, server, address, measure.Backlog{Events: events, Aggregates: aggregates, Bytes: 20})
					return metrics{"blocked-MiB": last.Blocked, "peak-MiB": last.Peak}, err
				})
				collected.Memory = append(collected.Memory, last)
			})
		}
	}
}

// memoryOf returns the sizes of a worker with a backlog.
func memoryOf(ctx context.Context, server *measure.Server, address string, backlog measure.Backlog) (blocked, peak float64, err error) {
	db, err := server.CreateDatabase(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, db.Drop()) }()
	if _, err := db.Preload(ctx, backlog); err != nil {
		return 0, 0, err
	}
	return measureChild(ctx, address, db.Name)
}

// measureChild runs a worker in a process of its own, first with blocked handlers, then draining, and returns its size at
// the end of the first and its greatest size.
func measureChild(ctx context.Context, address, database string) (blocked, peak float64, err error) {
	child := childCommand(ctx, memoryTask, address, childDatabase+"="+database)
	release, err := child.StdinPipe()
	if err != nil {
		return 0, 0, err
	}
	output, err := child.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := child.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	if !bufio.NewScanner(output).Scan() {
		return 0, 0, errors.New("the worker is not ready")
	}
	time.Sleep(memoryBlocked)
	pid := strconv.Itoa(child.Process.Pid)
	now, err := status(pid)
	if err != nil {
		return 0, 0, err
	}
	if err := release.Close(); err != nil {
		return 0, 0, err
	}
	time.Sleep(memoryDrain)
	end, err := status(pid)
	return now.resident, end.peak, err
}

// memoryChild is the worker: its handlers block until standard input ends. It runs until it is killed.
func memoryChild(ctx context.Context, config *pgxpool.Config) error {
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	w, err := outbox.NewWorker(outbox.Config{Pool: pool})
	if err != nil {
		return err
	}
	released := make(chan struct{})
	ready := sync.OnceFunc(func() { fmt.Println("ready") })
	_ = w.Subscribe(outbox.AnyType, "bench", outbox.HandlerFunc(func(context.Context, *outbox.Event) error {
		ready()
		<-released
		return nil
	})) // Run returns its error
	go func() { // with nothing pending no handler says so
		<-w.Ready()
		ready()
	}()
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // it ends when the parent says so, or is gone
		close(released)
	}()
	return w.Run(ctx)
}

// size is what a process takes of the machine's memory, in MiB.
type size struct{ resident, peak float64 }

// status reads VmRSS and VmHWM of a process (proc(5)).
func status(pid string) (s size, err error) {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		switch fields[0] {
		case "VmRSS:":
			s.resident, err = mebibytes(fields[1])
		case "VmHWM:":
			s.peak, err = mebibytes(fields[1])
		}
		if err != nil {
			return s, fmt.Errorf("read %q: %w", line, err)
		}
	}
	return s, nil
}

func mebibytes(kibibytes string) (float64, error) {
	n, err := strconv.Atoi(kibibytes)
	return float64(n) / 1024, err
}
