package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// begin starts the program with its standard error in an output.
func begin(t *testing.T, cmd *exec.Cmd) *output {
	t.Helper()
	stderr := newOutput()
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return stderr
}

// exitCode waits for the end of the program.
func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	if err := cmd.Wait(); err != nil {
		if _, exited := errors.AsType[*exec.ExitError](err); !exited {
			t.Fatal(err)
		}
	}
	return cmd.ProcessState.ExitCode()
}

func send(t *testing.T, cmd *exec.Cmd, signal os.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	// hanging answers no request before the test is over.
	hanging := func(t *testing.T) (address string, asked <-chan struct{}) {
		t.Helper()
		requests, over := make(chan struct{}, 1), make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			requests <- struct{}{}
			select {
			case <-over:
			case <-r.Context().Done():
			}
		}))
		t.Cleanup(func() {
			close(over)
			server.Close()
		})
		return server.URL, requests
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run("the first stops in order: "+signal.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			cmd := process(t, []string{"DATABASE_URL=" + db.URL}, "run", "--sink", "stdout")
			stdout := newOutput()
			cmd.Stdout = stdout
			stderr := begin(t, cmd)
			stderr.waitFor(t, contains(`"ready"`))
			insert(t, db, 3)
			stdout.waitFor(t, lines(3))
			send(t, cmd, signal)
			if code := exitCode(t, cmd); code != exitClean {
				t.Errorf("exit code %d: %s", code, stderr)
			}
			if n := query[int](t, db, published); n != 3 {
				t.Errorf("%d of 3 printed events are marked", n)
			}
		})
	}
	t.Run("the second stops at once", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		address, asked := hanging(t)
		cmd := process(t, []string{"DATABASE_URL=" + db.URL, "OUTBOX_SINK=" + address, "OUTBOX_SHUTDOWN_GRACE=1h", "OUTBOX_HANDLER_TIMEOUT=1h"}, "run")
		stderr := begin(t, cmd)
		insert(t, db, 1)
		<-asked
		send(t, cmd, syscall.SIGTERM)
		over, impatience := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(impatience)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_ = cmd.Process.Signal(syscall.SIGINT) // an error: it has ended
				case <-over:
					return
				}
			}
		}()
		code := exitCode(t, cmd)
		close(over)
		<-impatience
		if code != exitFailure {
			t.Errorf("exit code %d", code)
		}
		if text := stderr.String(); !strings.HasSuffix(text, "outbox: stopped at once by a second signal; what was being handled is delivered again\n") {
			t.Errorf("%s", text)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE published_at IS NULL AND retry_count = 0"); n != 1 {
			t.Error("the event was touched")
		}
	})
	t.Run("a delivery that outlasts the grace is cut off, and the event untouched", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		address, asked := hanging(t)
		cmd := process(t, []string{"DATABASE_URL=" + db.URL}, "run", "--sink", address, "--shutdown-grace", "50ms")
		stderr := begin(t, cmd)
		insert(t, db, 1)
		<-asked
		send(t, cmd, syscall.SIGTERM)
		if code := exitCode(t, cmd); code != exitClean {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE published_at IS NULL AND retry_count = 0"); n != 1 {
			t.Error("the event was touched")
		}
	})
}

func TestReaderThatGoesAway(t *testing.T) {
	t.Parallel()

	t.Run("of run: an orderly failure, and no event is lost", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		cmd := process(t, []string{"DATABASE_URL=" + db.URL}, "run", "--sink", "stdout")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr := begin(t, cmd)
		insert(t, db, 1)
		if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := stdout.Close(); err != nil {
			t.Fatal(err)
		}
		insert(t, db, 5)
		if code := exitCode(t, cmd); code != exitFailure {
			t.Errorf("exit code %d", code)
		}
		if text := stderr.String(); !strings.Contains(text, "outbox: standard output is gone, and what was not printed stays for the next run: ") ||
			!strings.Contains(text, "broken pipe") || strings.Contains(text, "goroutine ") {
			t.Errorf("%s", text)
		}
		if n := query[int](t, db, "SELECT count(*) FROM events.outbox WHERE published_at IS NULL AND retry_count = 0"); n != 5 {
			t.Errorf("%d of 5 events that nobody read are left", n)
		}
		// The next run, at once: the ownership went with the process.
		r := startWorker(t, db, "--sink", "stdout")
		r.stdout.waitFor(t, lines(5))
	})
	t.Run("of anything else: one line", func(t *testing.T) {
		t.Parallel()
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := reader.Close(); err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		cmd := process(t, nil, "migrate", "sql")
		cmd.Stdout = writer
		stderr := begin(t, cmd)
		if code := exitCode(t, cmd); code != exitFailure || !strings.HasPrefix(stderr.String(), "outbox: write to standard output: ") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
}

func TestPGVariables(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{
		"PGHOST=" + config.Host, "PGPORT=" + strconv.Itoa(int(config.Port)), "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGDATABASE=" + db.Name,
	}
	t.Run("lead every command to the database", func(t *testing.T) {
		t.Parallel()
		for _, line := range []string{"status", "migrate up", needing[2]} {
			if out, err := process(t, environ, strings.Fields(line)...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", line, err, out)
			}
		}
		cmd := process(t, environ, "run", "--sink", "stdout")
		stdout := newOutput()
		cmd.Stdout = stdout
		begin(t, cmd)
		if line := stdout.waitFor(t, lines(1)); !strings.Contains(line, `"source":"/outbox/`+db.Name+`"`) {
			t.Errorf("%s", line)
		}
		send(t, cmd, syscall.SIGTERM)
		if code := exitCode(t, cmd); code != exitClean {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("are named where they are wrong", func(t *testing.T) {
		t.Parallel()
		cmd := process(t, append(environ, "PGDATABASE=atlantis"), "status")
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = io.Discard, &stderr
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitFailure {
			t.Errorf("%v", err)
		}
		if !strings.Contains(stderr.String(), `database "atlantis" does not exist`) || !strings.Contains(stderr.String(), "correct the PG* variables") {
			t.Errorf("%s", stderr.String())
		}
	})
}
