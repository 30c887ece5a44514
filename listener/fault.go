package listener

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// fault is a cause of being degraded.
type fault struct {
	reason string
	// lasting names a cause that only a person can remove, and is "" for one that may pass by
	// itself. It is what tells two lasting causes apart; the wording of reason may vary.
	lasting string
}

// directAddress is the advice for every cause that a pooler or a standby explains.
const directAddress = "use --listen-url with a direct address of the primary"

// sessionFault explains the error that ended a session or kept one from being opened.
// It decides by SQLSTATE (PostgreSQL manual, appendix A).
func sessionFault(err error) fault {
	reason := oneLine(err)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return fault{reason: reason}
	}
	switch {
	case pgErr.Code == "25006": // read_only_sql_transaction: LISTEN during recovery
		return fault{reason: reason + ": the server is a standby; " + directAddress, lasting: pgErr.Code}
	case pgErr.Code == "0A000", // feature_not_supported: a pooler or a server without LISTEN
		pgErr.Code == "08P01": // protocol_violation: a pooler that refuses a startup parameter
		return fault{reason: reason + ": " + directAddress, lasting: pgErr.Code}
	case strings.HasPrefix(pgErr.Code, "28"), // invalid authorization: password, role, pg_hba.conf
		pgErr.Code == "3D000", // no such database
		pgErr.Code == "42501": // insufficient privilege
		return fault{reason: reason, lasting: pgErr.Code}
	default:
		return fault{reason: reason}
	}
}

// neverHeard is the fault of a session that has not heard a single probe.
func neverHeard(timeout time.Duration) fault {
	return fault{
		reason: fmt.Sprintf("a notification sent through the pool did not arrive within %v: "+
			"the listener may be connected to a transaction-mode pooler or to another server or database than the pool; %s",
			timeout, directAddress),
		lasting: "never heard",
	}
}

// silent is the fault of a session that has heard probes before.
func silent(timeout time.Duration) fault {
	return fault{reason: fmt.Sprintf("the connection went silent: a notification sent through the pool did not arrive within %v", timeout)}
}

// unanswered is the fault of a session on which LISTEN got no answer.
func unanswered(timeout time.Duration) fault {
	return fault{reason: fmt.Sprintf("LISTEN was not answered within %v", timeout)}
}

// unsent is the fault of a probe that never left. It says nothing about the listener.
func unsent(err error) fault {
	return fault{reason: "probe could not be sent: " + oneLine(err)}
}

// oneLine is the error's text without line breaks: pgx puts one before each address that
// it tried, and the reason is shown in tables and log lines.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
