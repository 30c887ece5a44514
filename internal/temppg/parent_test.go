//go:build unix

package temppg

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// childVariable makes this test binary start a server, tell its process and folder, and end
// in the way that the variable says.
const childVariable = "TEMPPG_TEST_CHILD"

func child(how string) int {
	interrupts := make(chan os.Signal, 1)
	if how == "interrupt" {
		signal.Notify(interrupts, os.Interrupt)
	}
	s, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	pid, err := readPostmasterPID(s.DataDir())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(pid, s.SocketDir())
	switch how {
	case "exit":
		os.Exit(3)
	case "panic":
		panic("on purpose")
	case "interrupt":
		<-interrupts
		conn, err := pgx.Connect(context.Background(), s.URL("postgres"))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("alive", conn.Close(context.Background()), s.Stop())
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until killed, or until the test is gone
	return 0
}

// family is a child process with a server.
type family struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	server int
	folder string
}

func startFamily(t *testing.T, how string) *family {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+how)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := &family{cmd: cmd, lines: bufio.NewScanner(stdout)}
	line := f.line()
	if _, err := fmt.Sscan(line, &f.server, &f.folder); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("the child says %q", line)
	}
	return f
}

func (f *family) line() string {
	f.lines.Scan()
	return f.lines.Text()
}

func TestEndOfTheParent(t *testing.T) {
	t.Parallel()

	t.Run("kill -9 ends the server and removes its folder", func(t *testing.T) {
		t.Parallel()
		f := startFamily(t, "wait")
		if err := f.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = f.cmd.Wait()
		waitGone(t, f.server, f.folder)
	})
	for how, code := range map[string]int{"exit": 3, "panic": 2} {
		t.Run(how+" ends the server and removes its folder", func(t *testing.T) {
			t.Parallel()
			f := startFamily(t, how)
			_ = f.cmd.Wait()
			if got := f.cmd.ProcessState.ExitCode(); got != code {
				t.Errorf("exit code %d, want %d", got, code)
			}
			waitGone(t, f.server, f.folder)
		})
	}
	t.Run("Ctrl-C leaves the server running until the parent stops it", func(t *testing.T) {
		t.Parallel()
		f := startFamily(t, "interrupt")
		if err := syscall.Kill(-f.cmd.Process.Pid, syscall.SIGINT); err != nil { // as a terminal does: to the group
			t.Fatal(err)
		}
		if got := f.line(); got != "alive <nil> <nil>" {
			t.Errorf("the child says %q", got)
		}
		_ = f.cmd.Process.Kill()
		_ = f.cmd.Wait()
		waitGone(t, f.server, f.folder)
	})
}
