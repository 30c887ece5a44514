package main

import (
	"os"

	"github.com/mattn/go-isatty"
)

// isTerminal tells whether stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}
