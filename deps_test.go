package outbox

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies has what only some users want, such as a broker's client, stay out of what every service links.
func TestDependencies(t *testing.T) {
	t.Parallel()
	for program, unwanted := range map[string][]string{
		".":            {"hibiken/asynq", "redis", "prometheus"},
		"./cmd/outbox": {"hibiken/asynq", "redis"},
	} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", program).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages := strings.Fields(string(out))
		if !slices.Contains(packages, "github.com/jackc/pgx/v5") {
			t.Fatalf("go list has not listed what is linked: %d packages", len(packages))
		}
		for _, p := range packages {
			for _, part := range unwanted {
				if strings.Contains(p, part) {
					t.Errorf("%s links %s", program, p)
				}
			}
		}
	}
}
