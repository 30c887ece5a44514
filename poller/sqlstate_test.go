package poller

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestSQLState(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "23505", Message: "57P01 is only in the text"}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("SQLSTATE 23505"), ""},
		{refused, "23505"},
		{fmt.Errorf("settle: %w", fmt.Errorf("write: %w", refused)), "23505"},
		{errors.Join(context.Canceled, refused), "23505"},
	} {
		if got := sqlState(tc.err); got != tc.want {
			t.Errorf("sqlState(%v) = %q, want %q", tc.err, got, tc.want)
		}
	}
}

func TestIsDataFault(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"22021": true, "22003": true, "23514": true, "23503": true, "42501": true, "42703": true, "P0001": true,
		"40001": false, "40P01": false, "55P03": false, "57014": false, "57P01": false, "57P03": false, "08006": false,
		"53300": false, "25006": false, "0A000": false, "XX000": false, "P0002": false, "": false,
	} {
		if got := isDataFault(fmt.Errorf("settle: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%q: %t", code, got)
		}
	}
	for _, err := range []error{nil, context.DeadlineExceeded, errors.New("22021")} {
		if isDataFault(err) {
			t.Errorf("%v is taken for a data fault", err)
		}
	}
}
