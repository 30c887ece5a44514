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
	brokers := []string{"hibiken/asynq", "redis"}
	for _, tt := range []struct {
		name     string
		packages []string
		linked   string
		not      []string // parts of import paths
	}{
		{"the program", []string{"./cmd/outbox"}, "go.opentelemetry.io/otel/sdk/trace", brokers},
		// Of OpenTelemetry the API alone: where spans go is the service's choice.
		{
			"a service",
			[]string{".", "./tracing", "./sink", "./admin", "./audit"},
			"go.opentelemetry.io/otel/trace",
			append([]string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/proto", "google.golang.org/", "prometheus"}, brokers...),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, tt.packages...)...).Output()
			if err != nil {
				t.Fatalf("go list: %v", err)
			}
			linked := strings.Fields(string(out))
			if !slices.Contains(linked, "github.com/jackc/pgx/v5") || !slices.Contains(linked, tt.linked) {
				t.Fatalf("go list has not listed what is linked: %d packages", len(linked))
			}
			for _, p := range linked {
				if slices.ContainsFunc(tt.not, func(part string) bool { return strings.Contains(p, part) }) {
					t.Errorf("%s is linked", p)
				}
			}
		})
	}
}
