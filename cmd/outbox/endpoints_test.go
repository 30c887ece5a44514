package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// get asks one of the endpoints of a worker, and returns the status and the body.
func get(t *testing.T, r *running, method, path string) (code int, kind, body string) {
	t.Helper()
	log := r.stderr.waitFor(t, contains(`"admin_listening"`))
	address := regexp.MustCompile(`"address":"([^"]+)"`).FindStringSubmatch(log)[1]
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true // no connection is left over
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header.Get("Content-Type"), string(text)
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	const anyPort = "--admin-addr=127.0.0.1:0"

	t.Run("tell of an owner and of a standby", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		owner := startWorker(t, db, "--sink", "discard", anyPort)
		standby := startWorker(t, db, "--sink", "discard", anyPort)
		for role, r := range map[string]*running{"owner": owner, "standby": standby} {
			code, kind, body := get(t, r, "GET", "/readyz")
			var s readinessState
			if err := json.Unmarshal([]byte(body), &s); err != nil || code != 200 || kind != "application/json" || s.Status != ready || s.Role != role {
				t.Errorf("%s: %d %s %s (%v)", role, code, kind, body, err)
			}
		}
		insert(t, db, 3)
		eventually(t, db, 3, published)
		_, kind, body := get(t, owner, "GET", "/metrics")
		for _, want := range []string{"\noutbox_owner 1\n", "\noutbox_build_info{version=", "\noutbox_settled_events_total{outcome=\"published\"} 3\n", "\ngo_goroutines "} {
			if !strings.Contains(body, want) {
				t.Errorf("no %q in %s", want, body)
			}
		}
		if !strings.HasPrefix(kind, "text/plain") {
			t.Error(kind)
		}
		if code, _, body := get(t, owner, "GET", "/livez"); code != 200 || body != "{\"status\":\"alive\"}\n" {
			t.Errorf("%d %s", code, body)
		}
		if code, _, body := get(t, owner, "GET", "/debug"); code != 404 || !strings.Contains(body, "/readyz") {
			t.Errorf("%d %s", code, body)
		}
		if code, _, _ := get(t, owner, "POST", "/readyz"); code != 404 && code != 405 {
			t.Errorf("%d", code)
		}
		owner.stop()
		if code := owner.ends(t); code != exitClean {
			t.Errorf("exit code %d: %s", code, owner.stderr)
		}
	})

	t.Run("a worker without its database is alive, and not ready", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		proxy := db.Proxy(t)
		r := startWorker(t, db, "--sink", "discard", anyPort, "--database-url", db.Through(t, proxy))
		proxy.Cut()
		if code, _, body := get(t, r, "GET", "/livez"); code != 200 {
			t.Errorf("%d %s", code, body)
		}
		if code, _, body := get(t, r, "GET", "/readyz"); code != 503 || !strings.Contains(body, `"reason":"reach the database: `) {
			t.Errorf("%d %s", code, body)
		}
		proxy.Heal()
		pgtest.Eventually(t, func() error {
			if code, _, body := get(t, r, "GET", "/readyz"); code != 200 {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	})

	t.Run("a schema that is too old is not ready, and a newer one is", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		r := startWorker(t, db, "--sink", "discard", anyPort)
		for version, want := range map[string]int{"1": 503, "1000": 200} {
			execSQL(t, db, "CREATE OR REPLACE FUNCTION events.outbox_schema_version() RETURNS INTEGER LANGUAGE sql AS 'SELECT "+version+"'")
			if code, _, body := get(t, r, "GET", "/readyz"); code != want || !strings.Contains(body, "it has version "+version) {
				t.Errorf("%d %s", code, body)
			}
		}
	})

	t.Run("an address that is taken is told at the start", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		outboxOn(t, db, "run", "--sink", "discard", "--admin-addr", taken.Addr().String()).fails(t, exitFailure, "--admin-addr: listen tcp "+taken.Addr().String(), "address already in use")
	})
}

func TestAdminAddress(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"": "", ":9090": "127.0.0.1:9090", "0.0.0.0:9090": "0.0.0.0:9090", "[::]:80": "[::]:80", "localhost:http": "localhost:http", "db:0": "db:0",
	} {
		var a adminAddress
		if err := a.Set(given); err != nil || a.String() != want {
			t.Errorf("%q is %q (%v), want %q", given, a, err, want)
		}
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	away := errors.New("reach the database: no route")
	_, refused := pgconn.Connect(t.Context(), "postgres://u@127.0.0.1:1/db") // pgx tells of every address on a line of its own
	for name, tt := range map[string]struct {
		health outbox.Health
		err    error
		want   readinessState
	}{
		"owner":    {outbox.Health{Owner: true, InFlight: 3}, nil, readinessState{Status: ready, Role: "owner", InFlight: 3}},
		"standby":  {outbox.Health{Reason: "unproven"}, nil, readinessState{Status: ready, Role: "standby"}},
		"degraded": {outbox.Health{Owner: true, Degraded: true, Reason: "no echo"}, nil, readinessState{Status: ready, Role: "owner", Degraded: true, Reason: "no echo"}},
		"away":     {outbox.Health{Owner: true, Degraded: true, Unsettled: 2}, away, readinessState{Status: notReady, Degraded: true, Reason: away.Error(), Unsettled: 2}},
		"refused":  {outbox.Health{}, fmt.Errorf("reach the database: %w", refused), readinessState{Status: notReady, Reason: "reach the database: no connection to 127.0.0.1:1 (connect: connection refused)"}},
	} {
		if got := readiness(tt.health, tt.err); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
