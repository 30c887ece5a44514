package listener

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestSessionFault(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code    string
		lasting bool
		advice  bool
	}{
		"a wrong password lasts":                                    {"28P01", true, false},
		"a role that does not exist lasts":                          {"28000", true, false},
		"a database that does not exist lasts":                      {"3D000", true, false},
		"a missing privilege lasts":                                 {"42501", true, false},
		"a standby lasts, and the primary is advised":               {"25006", true, true},
		"a server without LISTEN lasts, and another is advised":     {"0A000", true, true},
		"a pooler's refusal lasts, and a direct address is advised": {"08P01", true, true},
		"a starting server passes":                                  {"57P03", false, false},
		"a terminated backend passes":                               {"57P01", false, false},
		"too many connections pass":                                 {"53300", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := sessionFault(fmt.Errorf("connect: %w", &pgconn.PgError{Severity: "FATAL", Code: tc.code, Message: "no"}))
			if want := map[bool]string{true: tc.code}[tc.lasting]; got.lasting != want {
				t.Errorf("lasting: %q, want %q", got.lasting, want)
			}
			if got := strings.Contains(got.reason, "--listen-url"); got != tc.advice {
				t.Errorf("advice to use --listen-url: %v, want %v", got, tc.advice)
			}
			if !strings.Contains(got.reason, tc.code) {
				t.Errorf("reason %q does not name the SQLSTATE", got.reason)
			}
		})
	}

	t.Run("an error that is not the server's passes", func(t *testing.T) {
		t.Parallel()
		if got := sessionFault(errors.New("connection refused")); got != (fault{reason: "connection refused"}) {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a reason is one line", func(t *testing.T) {
		t.Parallel()
		got := sessionFault(errors.New("failed:\n\thost a\n\thost b"))
		if want := "failed: host a host b"; got.reason != want {
			t.Errorf("reason %q, want %q", got.reason, want)
		}
	})
}
