package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	outbox "github.com/seed-9a365b49/outbox"
)

const (
	// memoryBacklog is how many events are pending.
	memoryBacklog = 1_000_000
	// memoryBlocked is how long handlers block, and memoryDrain how long the drain is watched after that.
	memoryBlocked = 6 * time.Second
	memoryDrain   = 6 * time.Second
	// memoryChildVariable makes this test binary a worker on the database that it names.
	memoryChildVariable = "OUTBOX_BENCH_MEMORY_CHILD"
)

// BenchmarkMemory measures the resident size of a worker with a backlog: see the package's documentation.
func BenchmarkMemory(b *testing.B) {
	if _, err := status("self"); err != nil {
		b.Skipf("needs Linux's /proc: %v", err)
	}
	for _, aggregates := range []int{1, 1_000_000} {
		b.Run(fmt.Sprintf("aggregates=%d", aggregates), func(b *testing.B) {
			var blocked, peak float64
			for b.Loop() {
				db, drop := newDatabase(b)
				db.preload(b, memoryBacklog, aggregates, 20)
				atBlocked, atEnd := measureChild(b, db.url)
				blocked, peak = max(blocked, atBlocked), max(peak, atEnd)
				drop()
			}
			b.ReportMetric(blocked, "blocked-MiB")
			b.ReportMetric(peak, "peak-MiB")
		})
	}
}

// measureChild runs a worker in a process of its own, first with blocked handlers, then draining, and returns its size at
// the end of the first and its greatest size.
func measureChild(b *testing.B, url string) (blocked, peak float64) {
	b.Helper()
	executable, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	child := exec.CommandContext(b.Context(), executable)
	child.Env = append(os.Environ(), memoryChildVariable+"="+url)
	child.Stderr = os.Stderr
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGKILL) }
	release, err := child.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	if !bufio.NewScanner(output).Scan() {
		b.Fatal("the worker has not called a handler")
	}
	time.Sleep(memoryBlocked)
	pid := strconv.Itoa(child.Process.Pid)
	now, err := status(pid)
	if err != nil {
		b.Fatal(err)
	}
	if err := release.Close(); err != nil {
		b.Fatal(err)
	}
	time.Sleep(memoryDrain)
	end, err := status(pid)
	if err != nil {
		b.Fatal(err)
	}
	return now.resident, end.peak
}

// memoryChild is the worker: its handlers block until standard input ends. It runs until it is killed.
func memoryChild(url string) (code int) {
	w, err := outbox.NewWorker(outbox.Config{DatabaseURL: url})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	released := make(chan struct{})
	var once sync.Once
	_ = w.Subscribe(outbox.AnyType, "bench", outbox.HandlerFunc(func(context.Context, *outbox.Event) error {
		once.Do(func() { fmt.Println("handling") })
		<-released
		return nil
	})) // Run returns its error
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // it ends when the parent says so, or is gone
		close(released)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
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
