// Package check tests what is in deploy/: that alerts fire when they should, and that metrics, flags and paths exist.
package check

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// binary is the program, built from this tree by the command of the Dockerfile.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "outbox-deploy")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "outbox")
		dockerfile, err := os.ReadFile("../Dockerfile")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		command := regexp.MustCompile(`(?m)^RUN (.*go build.*)/out/outbox( .*)$`).FindStringSubmatch(string(dockerfile))
		if command == nil {
			fmt.Fprintln(os.Stderr, "the Dockerfile has no line with RUN … go build … -o /out/outbox")
			return 1
		}
		build := exec.Command("sh", "-c", command[1]+binary+command[2])
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", command[0], err, out)
			return 1
		}
		return m.Run()
	}())
}

var help = struct {
	sync.Mutex
	of map[string]string
}{of: make(map[string]string)}

// helpOf is what the program says of a command; of one that does not exist it says what its parent does.
func helpOf(t *testing.T, command []string) string {
	t.Helper()
	help.Lock()
	defer help.Unlock()
	name := strings.Join(command, " ")
	if _, ok := help.of[name]; !ok {
		out, err := exec.CommandContext(t.Context(), binary, append(slices.Clone(command), "--help")...).Output()
		if err != nil {
			t.Fatalf("outbox %s --help: %v", name, err)
		}
		help.of[name] = string(out)
	}
	return help.of[name]
}

// mustKnow fails the test unless the program has such a command with such flags.
func mustKnow(t *testing.T, arguments []string) {
	t.Helper()
	var command []string
	for _, a := range arguments {
		if strings.HasPrefix(a, "-") || strings.ToUpper(a) == a { // a flag, or an argument such as ID
			break
		}
		command = append(command, a)
	}
	text := helpOf(t, command)
	if usage := "\n  outbox " + strings.Join(command, " "); !strings.Contains(text, usage) {
		t.Errorf("there is no command outbox %s", strings.Join(command, " "))
	}
	for _, a := range arguments {
		flag, _, _ := strings.Cut(a, "=")
		if strings.HasPrefix(flag, "--") && !strings.Contains(text, " "+flag+" ") {
			t.Errorf("outbox %s has no %s", strings.Join(command, " "), flag)
		}
	}
}
