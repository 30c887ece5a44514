package bench

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/temppg"
)

// urlVariable names a server to measure instead of a private one.
const urlVariable = "OUTBOX_BENCH_DATABASE_URL"

// patience bounds every step that is not measured.
const patience = 5 * time.Minute

// settings of the private server. A checkpoint or an autovacuum would hit one arm of a comparison and not the
// other, so a run gets by without either, and has memory for all its rows.
var settings = map[string]string{
	"shared_buffers":     "512MB",
	"max_wal_size":       "8GB",
	"checkpoint_timeout": "1h",
	"autovacuum":         "off",
}

// server is where databases are made. It starts at its first use.
type server struct {
	mu      sync.Mutex
	address string
	server  *measure.Server
	stop    func() error
	err     error // of the first attempt; there is no second
}

var shared server

// open returns the server and its address.
func (s *server) open(b *testing.B) (*measure.Server, string) {
	b.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.err == nil {
		s.err = s.start()
	}
	if s.err != nil {
		b.Fatal(s.err)
	}
	return s.server, s.address
}

func (s *server) start() error {
	s.address = os.Getenv(urlVariable)
	if s.address == "" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		private, err := temppg.Start(ctx, temppg.Options{Durable: true, Settings: settings, Progress: progress})
		if err != nil {
			return err
		}
		s.stop, s.address = private.Stop, private.URL("postgres")
	}
	config, err := pgxpool.ParseConfig(s.address)
	if err != nil {
		return fmt.Errorf("%s: %w", urlVariable, err)
	}
	s.server = measure.NewServer(config)
	return nil
}

// opened returns the server if a benchmark has needed one.
func (s *server) opened() *measure.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

func (s *server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil {
		return nil
	}
	return s.stop()
}

func progress(line string) { fmt.Fprintf(os.Stderr, "bench: %s\n", line) }
