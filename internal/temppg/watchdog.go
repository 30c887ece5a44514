package temppg

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

//go:embed watchdog.sh
var watchdogScript string

const (
	logName = "server.log"
	// endPatience is how long the watchdog may take to stop the server and remove the
	// folder before it is told to by a signal, and again before it is killed. The script's own limits
	// add up to 21 seconds.
	endPatience = 25 * time.Second
	// tailBytes is how much of a log an error quotes.
	tailBytes = 2048
)

// errRefused is the watchdog's "failed".
var errRefused = errors.New("failed")

// watchdog is the Go end of the shell process that owns the server.
type watchdog struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	answers chan string

	mu     sync.Mutex
	out    io.Writer
	broken error // set once an answer is outstanding that nobody waits for
}

// startWatchdog starts the process and waits until it has made its folder and the cluster in it.
func startWatchdog(ctx context.Context, as *account, binDir, base, conf string, log io.Writer) (*watchdog, string, error) {
	file := logName
	if log != nil {
		file = ""
	}
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "outbox-pg-watchdog", binDir, base, conf, file)
	cmd.Dir = "/"
	cmd.Env = serverEnv(os.Getenv)
	cmd.SysProcAttr = ownSession(as)
	if log != nil {
		// Hidden in a struct, so that an *os.File is copied to, not inherited: whoever reads
		// it must see its end when this process ends, not when the server does.
		cmd.Stderr = struct{ io.Writer }{log}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", fmt.Errorf("start watchdog: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", fmt.Errorf("start watchdog: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("start watchdog: %w", err)
	}
	w := &watchdog{cmd: cmd, stdin: stdin, out: stdin, answers: make(chan string, 1)}
	go w.read(stdout)

	folder, err := w.answer(ctx)
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("make a folder in %s: %w", base, err), w.end())
	}
	if _, err := w.answer(ctx); err != nil {
		err = fmt.Errorf("initdb of %s in %s: %w%s", binDir, folder, err, tail(filepath.Join(folder, "initdb.log")))
		return nil, "", errors.Join(err, w.end())
	}
	return w, folder, nil
}

// read hands over the watchdog's answers until the process has ended.
func (w *watchdog) read(stdout io.Reader) {
	defer close(w.answers)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		w.answers <- lines.Text()
	}
}

// ask sends one command and waits for its answer.
func (w *watchdog) ask(ctx context.Context, command string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return w.broken
	}
	if _, err := io.WriteString(w.out, command+"\n"); err != nil {
		return fmt.Errorf("the watchdog is gone: %w", err)
	}
	_, err := w.answer(ctx)
	return err
}

// answer waits for the next answer and returns what follows "done".
func (w *watchdog) answer(ctx context.Context) (string, error) {
	select {
	case <-ctx.Done():
		w.broken = fmt.Errorf("an earlier wait for the watchdog was given up: %w", ctx.Err())
		return "", ctx.Err()
	case line, ok := <-w.answers:
		if !ok {
			return "", errors.New("the watchdog has ended")
		}
		word, rest, more := strings.Cut(line, " ")
		switch {
		case word == "done":
			return rest, nil
		case more:
			return "", fmt.Errorf("%w: %s", errRefused, rest)
		}
		return "", errRefused
	}
}

// end closes the watchdog's input and waits until it has cleaned up and ended.
func (w *watchdog) end() error {
	_ = w.stdin.Close()
	gone := make(chan error, 1)
	go func() {
		for range w.answers { // drained to its end before Wait closes the pipe
		}
		gone <- w.cmd.Wait()
	}()
	for _, signal := range []os.Signal{terminate, os.Kill} {
		select {
		case err := <-gone:
			return err
		case <-time.After(endPatience):
			_ = w.cmd.Process.Signal(signal)
		}
	}
	return errors.Join(errors.New("the watchdog did not end and was killed"), <-gone)
}

// serverEnv is the environment of the server: little, so that PGPORT, PGOPTIONS or a
// locale of the caller do not change how it behaves, and secrets do not reach another user.
func serverEnv(getenv func(string) string) []string {
	env := []string{"LC_ALL=C", "TZ=UTC", "PATH=" + getenv("PATH") + ":/usr/bin:/bin"}
	if path := getenv("LD_LIBRARY_PATH"); path != "" {
		env = append(env, "LD_LIBRARY_PATH="+path)
	}
	return env
}

// tail returns the end of a log as a piece of an error message, or "" if there is none.
func tail(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size == 0 {
		return ""
	} else if _, err := f.Seek(max(0, size-tailBytes), io.SeekStart); err != nil {
		return ""
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	return ":\n" + strings.TrimSpace(string(text))
}
