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
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", "./cmd/outbox").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, "github.com/jackc/pgx/v5") {
		t.Fatalf("go list has not listed what is linked: %d packages", len(packages))
	}
	for _, p := range packages {
		if strings.Contains(p, "hibiken/asynq") || strings.Contains(p, "redis") {
			t.Errorf("%s is linked", p)
		}
	}
}
