package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameSignal is how long after the first signal another one still belongs to it: timeout(1) and some supervisors signal
// the process and its group, and a shell's Ctrl-C may come with a wrapper's. Nobody loses patience that fast.
const sameSignal = 500 * time.Millisecond

// interruptible returns a context that ends with the first SIGINT or SIGTERM. The second ends the process at once,
// with exit code 1: what handlers are working on is delivered again.
//
// SIGPIPE, which kills a Go program that writes to a closed standard output, becomes an error of that
// write. It is caught rather than ignored because child processes inherit an ignored signal.
func interruptible(ctx context.Context, stderr io.Writer) context.Context {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go heed(signals, cancel, func() {
		fmt.Fprintln(stderr, "outbox: stopped at once by a second signal; what was being handled is delivered again")
		os.Exit(exitFailure)
	})
	return ctx
}

// heed calls first at the first signal, and second at the first one that does not belong to it.
func heed(signals <-chan os.Signal, first, second func()) {
	<-signals
	began := time.Now()
	first()
	for range signals {
		if time.Since(began) >= sameSignal {
			second()
			return
		}
	}
}
