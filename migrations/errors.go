package migrations

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrForeignTool is returned for a schema that another migration tool made from [SQL].
var ErrForeignTool = errors.New("the outbox schema was applied by another migration tool; change it with that tool (`outbox migrate sql` prints the SQL)")

// ErrNewer is returned for a schema with migrations that this build does not know.
var ErrNewer = errors.New("the outbox schema is newer than this build")

// refuseNewer returns [ErrNewer] for a version above [Latest].
func refuseNewer(version int) error {
	if version <= Latest {
		return nil
	}
	return fmt.Errorf("%w: it has version %d, this build knows %d; use a newer outbox", ErrNewer, version, Latest)
}

// ErrNotMigrated is returned by [Down] and [DownAll] where there is nothing to take back.
var ErrNotMigrated = errors.New("the outbox schema is not there: nothing to take back")

// ErrDifferentTable is what errors.Is finds where events.outbox exists and is not the specification's.
var ErrDifferentTable = errors.New("events.outbox differs from the specification")

// differentTableError is the refusal of migration 00001_outbox.sql. Its text is what the migration says, without what
// goose and the driver add.
type differentTableError struct{ pg *pgconn.PgError }

func (e *differentTableError) Error() string   { return e.pg.Message + " (" + e.pg.Hint + ")" }
func (e *differentTableError) Unwrap() []error { return []error{ErrDifferentTable, e.pg} }

const (
	lockNotAvailable  = "55P03"
	deadlockDetected  = "40P01"
	notPrivileged     = "42501"
	refusedByAdoption = "55000" // object_not_in_prerequisite_state
)

// isLocked reports whether a statement gave up because of other sessions' locks.
func isLocked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == lockNotAvailable || pg.Code == deadlockDetected)
}

// describe adds what to do about the errors that an operator can meet.
func describe(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch {
	case isLocked(err):
		return fmt.Errorf("events.outbox stayed locked by other sessions; migrate again when long transactions have ended, the migrations so far stay: %w", err)
	case pg.Code == notPrivileged && pg.Hint != "": // ours: it says what to do
		return fmt.Errorf("%s (%s): %w", pg.Message, pg.Hint, err)
	case pg.Code == notPrivileged:
		return fmt.Errorf("the role lacks a privilege: migrate as the owner of schema events and of what is in it, or, where there is none, as a role that may create it: %w", err)
	case pg.Code == refusedByAdoption && pg.Hint != "":
		return &differentTableError{pg}
	}
	return err
}
