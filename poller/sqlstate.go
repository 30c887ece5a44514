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

// isDataFault reports whether an error lies in the rows of a statement, so that the same rows
// will fail again: data exceptions (22), integrity (23), access or definition (42), RAISE in a trigger
// (P0001). Everything else can pass: outages, deadlocks, timeouts.
func isDataFault(err error) bool {
	code := sqlState(err)
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23") || strings.HasPrefix(code, "42") || code == "P0001"
}
