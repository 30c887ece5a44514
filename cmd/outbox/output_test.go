package main

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for _, line := range []string{
		"", "--help", "run --help", "help", "help migrate up", "--version", "version", "completion bash", "__complete run --log-level=",
		"status", "status -o json", "migrate status", "migrate up", "migrate sql", needing[2],
	} {
		t.Run("is a failure of: "+line, func(t *testing.T) {
			t.Parallel()
			var stderr strings.Builder
			code := run(t.Context(), strings.Fields(line), []string{"DATABASE_URL=" + db.URL}, strings.NewReader(""), brokenWriter{}, &stderr)
			want := "outbox: write to standard output: broken\n"
			if strings.HasPrefix(line, "__complete") {
				want = "Completion ended with directive: ShellCompDirectiveNoFileComp\n" + want
			}
			if code != exitFailure || stderr.String() != want {
				t.Errorf("exit code %d: %q", code, stderr.String())
			}
		})
	}
}

// redirected is the program in a process of its own, with a redirection of the shell.
func redirected(t *testing.T, environ []string, redirection string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := process(t, environ, args...)
	shell := []string{"sh", "-c", `exec "$0" "$@" ` + redirection}
	path, err := exec.LookPath(shell[0])
	if err != nil {
		t.Skip("there is no shell to redirect with")
	}
	cmd.Path, cmd.Args = path, append(shell, cmd.Args...)
	return cmd
}

// The runtime opens /dev/null on a closed descriptor, where every event would be "printed" and marked.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no descriptors to close")
	}
	for _, redirection := range []string{">&-", "1<>/dev/null", "1</dev/null", "<&- >&-"} {
		t.Run("run refuses "+redirection, func(t *testing.T) {
			t.Parallel()
			cmd := redirected(t, []string{nowhere}, redirection, "run", "--sink", "stdout")
			stderr := begin(t, cmd)
			code := exitCode(t, cmd)
			outcome{code: code, stderr: stderr.String()}.fails(t, exitUsage, "standard output is closed", "--sink discard")
		})
	}
	for _, args := range [][]string{{"--sink", "stdout"}, {"--sink", "discard"}} {
		redirection := map[string]string{"stdout": ">/dev/null", "discard": ">&-"}[args[1]]
		t.Run("run takes "+redirection+" for "+args[1], func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			cmd := redirected(t, []string{"DATABASE_URL=" + db.URL}, redirection, append([]string{"run"}, args...)...)
			stderr := begin(t, cmd)
			insert(t, db, 1)
			stderr.waitFor(t, contains(`"ready"`))
			eventually(t, db, 1, published)
			send(t, cmd, syscall.SIGTERM)
			if code := exitCode(t, cmd); code != exitClean {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
	t.Run("a file and a pipe are open", func(t *testing.T) {
		t.Parallel()
		file, err := os.Create(t.TempDir() + "/out")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		defer writer.Close()
		if isClosed(file) || isClosed(writer) || isClosed(&strings.Builder{}) {
			t.Error("one of them counts as closed")
		}
	})
}
