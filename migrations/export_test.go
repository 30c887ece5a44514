package migrations

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// UpOnce is [Up] that does not try again where the table is locked.
func UpOnce(ctx context.Context, config *pgx.ConnConfig) error { return upTrying(ctx, config, 1, nil) }
