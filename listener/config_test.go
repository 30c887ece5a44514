package listener

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestNew(t *testing.T) {
	t.Parallel()
	valid := func() Config {
		return Config{
			Connect:      func(context.Context) (*pgx.Conn, error) { return nil, context.Canceled },
			SendProbe:    func(context.Context, string) error { return nil },
			ProbeChannel: "probe",
			Handlers:     map[string]func(){"work": func() {}},
		}
	}

	t.Run("takes a config with defaults for what is left out", func(t *testing.T) {
		t.Parallel()
		l, err := New(valid())
		if err != nil {
			t.Fatal(err)
		}
		want := timing{listen: 10 * time.Second, interval: 15 * time.Second, echo: time.Second}
		if got := l.machine.timing; got != want {
			t.Errorf("timing %+v, want %+v", got, want)
		}
		if got := l.State(); got != (State{Reason: "starting"}) {
			t.Errorf("state %+v", got)
		}
	})

	for name, tc := range map[string]struct {
		spoil func(*Config)
		want  []string
	}{
		"names every missing field at once": {
			func(c *Config) { *c = Config{} },
			[]string{"Connect is required", "SendProbe is required", "ProbeChannel: ", "Handlers: "},
		},
		"rejects a channel that LISTEN would truncate": {
			func(c *Config) { c.Handlers[strings.Repeat("x", 64)] = func() {} },
			[]string{"64 bytes"},
		},
		"rejects a channel without a name": {
			func(c *Config) { c.Handlers[""] = func() {} },
			[]string{`Handlers[""]`},
		},
		"rejects a handler that is nil": {
			func(c *Config) { c.Handlers["work"] = nil },
			[]string{`Handlers["work"]: the function is nil`},
		},
		"rejects a handler on the probe channel": {
			func(c *Config) { c.Handlers["probe"] = func() {} },
			[]string{`Handlers["probe"]: is the ProbeChannel`},
		},
		"rejects negative durations": {
			func(c *Config) { c.ConnectTimeout, c.ProbeInterval, c.ProbeTimeout = -1, -2, -3 },
			[]string{"ConnectTimeout: -1ns", "ProbeInterval: -2ns", "ProbeTimeout: -3ns"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := valid()
			tc.spoil(&cfg)
			_, err := New(cfg)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}

	t.Run("takes a channel of 63 bytes", func(t *testing.T) {
		t.Parallel()
		cfg := valid()
		cfg.Handlers[strings.Repeat("x", 63)] = func() {}
		if _, err := New(cfg); err != nil {
			t.Error(err)
		}
	})
}
