package bench

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

// idleTask is the child that has nothing but an idle worker. Its window has ten fallback polls and more.
const idleTask = "idle"

var idleWorker = measure.IdleWorker{Settle: 3 * time.Second, Window: 15 * time.Second}

// BenchmarkIdle measures what a worker costs that has nothing to do: see the package's documentation.
func BenchmarkIdle(b *testing.B) {
	_, address := shared.open(b)
	var last measure.Idled
	rounds(b, func(ctx context.Context) (metrics, error) {
		output, err := childCommand(ctx, idleTask, address).Output()
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(output, &last); err != nil {
			return nil, err
		}
		return metrics{"queries/s": last.Queries, "cpu-%": 100 * last.CPU}, nil
	})
	collected.Idle = &last
}

// idleChild prints what it measured.
func idleChild(ctx context.Context, server *measure.Server) error {
	result, err := idleWorker.Run(ctx, server)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
