// Command outbox makes the schema of a transactional outbox, publishes events to it, and delivers them.
//
// Exit codes: 0 after what was asked for was done, a graceful stop of `outbox run` included; 1 after a failure, and
// where a second signal cut the stop short or what was to be printed could not be; 2 where the command line or the
// environment is wrong. An error is one line on standard error.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // for --archive-zone, where the machine has none
)

func main() {
	ctx := interruptible(context.Background(), os.Stderr)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
