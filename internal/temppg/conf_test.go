package temppg

import (
	"strings"
	"testing"
)

func TestConf(t *testing.T) {
	t.Parallel()

	t.Run("settings win over defaults and are quoted", func(t *testing.T) {
		t.Parallel()
		conf, err := Options{Folder: "/tmp", Settings: map[string]string{
			"shared_buffers": "8MB", "log_line_prefix": `it's \n %m`, "my.own": "",
		}}.conf()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"shared_buffers = '8MB'\n", `log_line_prefix = 'it''s \\n %m'` + "\n", "my.own = ''\n", "max_connections = '200'\n", "fsync = 'off'\n",
		} {
			if !strings.Contains(conf, want) {
				t.Errorf("no %q in\n%s", want, conf)
			}
		}
		if n := strings.Count(conf, "shared_buffers"); n != 1 {
			t.Errorf("shared_buffers is there %d times", n)
		}
	})

	t.Run("all problems are told at once", func(t *testing.T) {
		t.Parallel()
		_, err := Options{Folder: "tmp", MaxConnections: -1, Settings: map[string]string{
			"no name": "1", "work_mem": "1MB\nfsync = on", "Port": "5432",
		}}.conf()
		if err == nil {
			t.Fatal("no error")
		}
		for _, want := range []string{`folder "tmp"`, "max connections -1", `"no name"`, "work_mem", "Port"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error does not name %q: %v", want, err)
			}
		}
	})
}
