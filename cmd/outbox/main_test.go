package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// asProgram makes the test binary the program itself, for tests that need a process: signals, a broken pipe, the
// PG* variables.
const asProgram = "OUTBOX_TEST_AS_PROGRAM"

// patience bounds every wait of a test.
const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// outcome is the end of a command line.
type outcome struct {
	code           int
	stdout, stderr string
}

// outboxOn runs a command line on a database to its end.
func outboxOn(t *testing.T, db *pgtest.DB, args ...string) outcome {
	t.Helper()
	return execute(t, "", []string{"DATABASE_URL=" + db.URL}, args...)
}

func execute(t *testing.T, stdin string, environ []string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, environ, strings.NewReader(stdin), &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// succeeds fails the test unless the command line was a success without a word of complaint.
func (o outcome) succeeds(t *testing.T) outcome {
	t.Helper()
	if o.code != exitClean || o.stderr != "" {
		t.Fatalf("exit code %d, stderr: %s", o.code, o.stderr)
	}
	return o
}

// fails fails the test unless the command line ended with code, nothing on standard output, and one line on
// standard error that contains all of want.
func (o outcome) fails(t *testing.T, code int, want ...string) {
	t.Helper()
	if o.code != code || o.stdout != "" {
		t.Errorf("exit code %d, want %d; stdout: %q", o.code, code, o.stdout)
	}
	if !strings.HasPrefix(o.stderr, "outbox: ") || strings.Count(o.stderr, "\n") != 1 || !strings.HasSuffix(o.stderr, "\n") ||
		strings.HasPrefix(o.stderr, "outbox: outbox") {
		t.Errorf("stderr is not one line of the program's: %q", o.stderr)
	}
	for _, text := range want {
		if !strings.Contains(o.stderr, text) {
			t.Errorf("stderr does not say %q: %s", text, o.stderr)
		}
	}
	if strings.Contains(o.stderr, "sesame") {
		t.Errorf("stderr shows the password: %s", o.stderr)
	}
}

// output is a stream that a command writes to and a test reads meanwhile.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{} // holds a token after a write
}

func newOutput() *output { return &output{written: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.text.Write(p)
	select {
	case o.written <- struct{}{}:
	default:
	}
	return n, err
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// waitFor returns what was written once that is enough.
func (o *output) waitFor(t *testing.T, enough func(text string) bool) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		if text := o.String(); enough(text) {
			return text
		}
		select {
		case <-o.written:
		case <-deadline:
			t.Fatalf("not written in time; so far: %s", o.String())
		}
	}
}

func contains(part string) func(string) bool {
	return func(text string) bool { return strings.Contains(text, part) }
}

func lines(n int) func(string) bool {
	return func(text string) bool { return strings.Count(text, "\n") >= n }
}

// running is a command line that goes on until it is stopped.
type running struct {
	db             *pgtest.DB
	stdout, stderr *output
	stop           context.CancelFunc // as a first signal does
	code           chan int
}

// start begins a command line on a database. It is stopped with the test.
func start(t *testing.T, db *pgtest.DB, stdin io.Reader, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{db: db, stdout: newOutput(), stderr: newOutput(), stop: cancel, code: make(chan int, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.code <- run(ctx, args, []string{"DATABASE_URL=" + db.URL}, stdin, r.stdout, r.stderr)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// startWorker begins `outbox run` and returns once it is ready.
func startWorker(t *testing.T, db *pgtest.DB, args ...string) *running {
	t.Helper()
	r := start(t, db, strings.NewReader(""), append([]string{"run"}, args...)...)
	r.stderr.waitFor(t, contains(`"ready"`))
	return r
}

// ends returns the exit code.
func (r *running) ends(t *testing.T) int {
	t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(patience):
		t.Fatalf("did not end; stderr: %s", r.stderr)
		return 0
	}
}

// process is the program in a process of its own.
func process(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(environ, asProgram+"=1", "HOME="+t.TempDir())
	return cmd
}

// insert commits n events, each of an aggregate of its own, and returns their ids.
func insert(t *testing.T, db *pgtest.DB, n int) []int64 {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `INSERT INTO events.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'invoice', gen_random_uuid(), 'InvoicePaid', jsonb_build_object('version', 1, 'data', jsonb_build_object('n', i))
		FROM generate_series(1, $1::int) i RETURNING id`, n)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// query returns one value.
func query[T any](t *testing.T, db *pgtest.DB, sql string, args ...any) T {
	t.Helper()
	var value T
	if err := db.Pool.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func execSQL(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// eventually waits until a query returns want.
func eventually[T comparable](t *testing.T, db *pgtest.DB, want T, sql string, args ...any) {
	t.Helper()
	pgtest.Eventually(t, func() error {
		if got := query[T](t, db, sql, args...); got != want {
			return fmt.Errorf("%s: still %v, want %v", sql, got, want)
		}
		return nil
	})
}

var invoice = uuid.MustParse("018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091").String()

// execSQLDetached is execSQL for the time after a test.
func execSQLDetached(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	if _, err := db.Pool.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
}
