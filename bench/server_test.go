package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-9a365b49/outbox/internal/benchserver"
	"github.com/seed-9a365b49/outbox/internal/measure"
)

// patience bounds every step that is not measured.
const patience = 5 * time.Minute

// server is where databases are made. It starts at its first use.
type server struct {
	benchserver.Server
	mu     sync.Mutex
	server *measure.Server
}

// shared gets by without autovacuum, which would hit one arm of a comparison and not the other, and has memory for all its rows.
var shared = server{Server: benchserver.Server{Name: "bench", Patience: patience, Settings: map[string]string{"autovacuum": "off"}}}

// open returns the server and its address.
func (s *server) open(b *testing.B) (*measure.Server, string) {
	b.Helper()
	address, err := s.Address()
	if err != nil {
		b.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		config, err := pgxpool.ParseConfig(address)
		if err != nil {
			b.Fatal(fmt.Errorf("%s: %w", benchserver.Variable, err))
		}
		s.server = measure.NewServer(config)
	}
	return s.server, address
}

// opened returns the server if a benchmark has needed one.
func (s *server) opened() *measure.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}
