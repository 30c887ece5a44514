// Package pause waits between two steps of work that can be stopped.
package pause

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends, which is an error.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
