// Package benchserver is the PostgreSQL that benchmarks work on: one that the user names, or a private one.
package benchserver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/seed-9a365b49/outbox/internal/temppg"
)

// Variable names a server to measure instead of a private one.
const Variable = "OUTBOX_BENCH_DATABASE_URL"

// settings of a private server. A checkpoint would hit one arm of a comparison and not the other, so a run gets by without.
var settings = map[string]string{
	"shared_buffers":     "512MB",
	"max_wal_size":       "8GB",
	"checkpoint_timeout": "1h",
}

// Server starts at its first use.
type Server struct {
	// Name begins the lines that say how the start goes.
	Name string
	// Settings are added to those of a private server.
	Settings map[string]string
	// Patience bounds the start.
	Patience time.Duration

	mu      sync.Mutex
	address string
	stop    func() error
	err     error // of the first attempt; there is no second
}

// Address returns where the server is: a URL, or, from [Variable], whatever the user has given.
func (s *Server) Address() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.address == "" && s.err == nil {
		s.err = s.start()
	}
	return s.address, s.err
}

func (s *Server) start() error {
	if s.address = os.Getenv(Variable); s.address != "" {
		return nil
	}
	all := maps.Clone(settings)
	maps.Copy(all, s.Settings)
	ctx, cancel := context.WithTimeout(context.Background(), s.Patience)
	defer cancel()
	progress := func(line string) { fmt.Fprintf(os.Stderr, "%s: %s\n", s.Name, line) }
	private, err := temppg.Start(ctx, temppg.Options{Durable: true, Settings: all, Progress: progress})
	if err != nil {
		return err
	}
	s.stop, s.address = private.Stop, private.URL("postgres")
	return nil
}

// Close stops a private server.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil {
		return nil
	}
	return s.stop()
}
