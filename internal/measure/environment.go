package measure

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Environment is what figures depend on. It names no host and no path.
type Environment struct {
	Time      time.Time `json:"time"`
	Outbox    string    `json:"outbox"` // the version
	Go        string    `json:"go"`
	Machine   string    `json:"machine"`        // of the client; the server may be another one
	Cores     int       `json:"cores"`          // that the client may use
	MemoryGiB float64   `json:"memory_gib"`     // of the client's machine; 0 where it is not known
	Postgres  string    `json:"postgres"`       // the server's version
	Settings  []Setting `json:"settings"`       // of the server that matter
	RoundTrip float64   `json:"round_trip_us"`  // of an empty statement, the median
	Server    string    `json:"server_version"` // as a number, such as 150018
}

// Setting is one of the server's.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// settings are those that decide what a commit and an update cost.
var settings = []string{"fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "autovacuum"}

// roundTrips is how many empty statements the round trip is the median of.
const roundTrips = 101

// Environment describes the server and the machine. version is that of the outbox.
func (s *Server) Environment(ctx context.Context, version string) (e Environment, err error) {
	e = Environment{
		Time: time.Now().UTC().Truncate(time.Second), Outbox: version, Go: runtime.Version(),
		Machine: machine(), Cores: runtime.GOMAXPROCS(0), MemoryGiB: memoryGiB(),
	}
	err = s.with(ctx, func(conn *pgx.Conn) error {
		for _, name := range settings {
			setting := Setting{Name: name}
			if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&setting.Value); err != nil {
				return err
			}
			e.Settings = append(e.Settings, setting)
		}
		if err := conn.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('server_version_num')").Scan(&e.Postgres, &e.Server); err != nil {
			return err
		}
		e.RoundTrip, err = roundTrip(ctx, conn)
		return err
	})
	if err != nil {
		return e, fmt.Errorf("describe the server: %w", err)
	}
	return e, nil
}

func roundTrip(ctx context.Context, conn *pgx.Conn) (micros float64, err error) {
	var took []time.Duration
	for range roundTrips {
		began := time.Now()
		if err := conn.Ping(ctx); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return float64(took[roundTrips/2].Nanoseconds()) / 1000, nil
}

// machine names the processor, as Linux does; elsewhere its kind.
func machine() string {
	kind := runtime.GOOS + "/" + runtime.GOARCH
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return kind
	}
	if model := field(string(text), "model name"); model != "" {
		return model + ", " + kind
	}
	return kind
}

func memoryGiB() float64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	kibibytes, err := strconv.ParseFloat(strings.TrimSuffix(field(string(text), "MemTotal"), " kB"), 64)
	if err != nil {
		return 0
	}
	return kibibytes / (1 << 20)
}

// field returns the value of the first line "name: value".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
