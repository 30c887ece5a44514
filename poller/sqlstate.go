package poller

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// sqlState returns the SQLSTATE of a server's error, "" for any other error.
// See the PostgreSQL manual, appendix "PostgreSQL Error Codes".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

const (
	readOnlyTransaction = "25006" // the server became a standby
	cachedPlanChanged   = "0A000" // "cached plan must not change result type": once again succeeds
)

// hookError is an error of [Config.OnPublished]. It is no fault of the event, which must not be tried again for it.
type hookError struct{ err error }

func (e *hookError) Error() string { return "what is to join the marks failed: " + e.err.Error() }
func (e *hookError) Unwrap() error { return e.err }

// isDataFault reports whether an error lies in the rows of a statement, so that the same rows
// will fail again: data exceptions (22), integrity (23), access or definition (42), RAISE in a trigger
// (P0001). Everything else can pass: outages, deadlocks, timeouts. Where it is a hook's, a table or a privilege (42)
// that is missing is missing for all rows.
func isDataFault(err error) bool {
	code := sqlState(err)
	if strings.HasPrefix(code, "42") {
		return !isHookError(err)
	}
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23") || code == "P0001"
}

func isHookError(err error) bool {
	_, ok := errors.AsType[*hookError](err)
	return ok
}
