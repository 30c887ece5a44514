// Package pgtest gives every test a database of its own on a real PostgreSQL server.
//
// A test binary starts one private temporary server at the first use and migrates one
// template database; each test gets a copy of it, which costs one or two tenths of a second.
// Call [Main] from TestMain, then [Database] in tests:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// With OUTBOX_TEST_DATABASE_URL set (a postgres:// URL of a role that may create
// databases), databases are made on that server instead.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-9a365b49/outbox/internal/temppg"
)

const urlVariable = "OUTBOX_TEST_DATABASE_URL"

const (
	// startPatience bounds the start of a server, which may need a download first.
	startPatience = 5 * time.Minute
	// patience bounds every other step of setting up and cleaning up, so that a hanging
	// server fails a test and names the step.
	patience = time.Minute
)

// Main runs the tests of a package, stops the server that they shared, and exits. If all
// tests passed it then fails for every goroutine that is still running; opts are for
// goroutines of other people's packages.
func Main(m *testing.M, opts ...goleak.Option) {
	os.Exit(run(m, opts...))
}

func run(m *testing.M, opts ...goleak.Option) (code int) {
	func() {
		// Also when m.Run panics; the panic goes on afterwards.
		defer func() {
			if err := closeShared(); err != nil {
				fmt.Fprintf(os.Stderr, "pgtest: %v\n", err)
				code = max(code, 1)
			}
		}()
		code = m.Run()
	}()
	if code != 0 {
		return code
	}
	if err := goleak.Find(opts...); err != nil {
		fmt.Fprintf(os.Stderr, "pgtest: goroutines are left over: %v\n", err)
		return 1
	}
	return 0
}

var shared struct {
	sync.Mutex
	cluster *cluster
	stop    func() error
	err     error // of the first attempt; there is no second
}

// sharedCluster starts the server of this test binary, or finds the one that the
// environment names, at its first call.
func sharedCluster(t testing.TB) *cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.err != nil {
		t.Fatal("pgtest: no server, see the first failed test")
	}
	if shared.cluster == nil {
		shared.cluster, shared.stop, shared.err = openShared()
	}
	if shared.err != nil {
		t.Fatalf("pgtest: %v", shared.err)
	}
	return shared.cluster
}

func openShared() (*cluster, func() error, error) {
	if url := os.Getenv(urlVariable); url != "" {
		c, err := newCluster(url)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", urlVariable, err)
		}
		return c, c.close, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	server, err := temppg.Start(ctx, temppg.Options{Progress: progress})
	if err != nil {
		return nil, nil, err
	}
	c, err := newCluster(server.URL(adminDatabase))
	return c, server.Stop, err
}

// closeShared ends what sharedCluster began, if it did.
func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.stop == nil {
		return nil
	}
	err := shared.stop()
	shared.cluster, shared.stop, shared.err = nil, nil, nil
	return err
}

func progress(line string) { fmt.Fprintf(os.Stderr, "pgtest: %s\n", line) }

// Database returns a new database with all migrations applied. It is dropped when the test
// ends.
func Database(t testing.TB) *DB {
	t.Helper()
	return sharedCluster(t).migrated(t)
}

// EmptyDatabase returns a new database without anything in it. It is dropped when the test
// ends.
func EmptyDatabase(t testing.TB) *DB {
	t.Helper()
	return sharedCluster(t).empty(t)
}

// Cluster starts a private server for a test that stops, restarts or configures one. It
// costs a second or two, and ends with the test. It is a temporary server also where
// OUTBOX_TEST_DATABASE_URL is set.
func Cluster(t testing.TB, opts ...func(*temppg.Options)) *temppg.Server {
	t.Helper()
	o := temppg.Options{Progress: progress}
	for _, opt := range opts {
		opt(&o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	server, err := temppg.Start(ctx, o)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return server
}

// Eventually calls condition until it returns nil. After a minute it ends the test with what condition said last.
func Eventually(t testing.TB, condition func() error) {
	t.Helper()
	const pause = 5 * time.Millisecond // leaves the processor to what is waited for
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(pause) {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %v", err)
		}
	}
}

// DatabaseOn is [Database] on a private server of [Cluster].
func DatabaseOn(t testing.TB, server *temppg.Server) *DB {
	t.Helper()
	c, err := newCluster(server.URL(adminDatabase))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c.migrated(t)
}
