package peers

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	func() {
		// Also when m.Run panics; the panic goes on afterwards.
		defer func() {
			if err := shared.Close(); err != nil {
				fmt.Fprintf(os.Stderr, "peers: %v\n", err)
				code = max(code, 1)
			}
		}()
		code = m.Run()
	}()
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintf(os.Stderr, "peers: goroutines are left over: %v\n", err)
		return 1
	}
	return 0
}
