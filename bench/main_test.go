package bench

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(childTask); task != "" {
		os.Exit(child(task))
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	func() {
		// Also when m.Run panics; the panic goes on afterwards.
		defer func() {
			if err := shared.Close(); err != nil {
				fmt.Fprintf(os.Stderr, "bench: %v\n", err)
				code = max(code, 1)
			}
		}()
		if code = m.Run(); code != 0 {
			return
		}
		if err := writeReport(); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
			code = 1
		}
	}()
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: goroutines are left over: %v\n", err)
		return 1
	}
	return 0
}
