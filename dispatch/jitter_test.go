package dispatch

import (
	"testing"
	"time"
)

func TestJitterAddsUpToATenth(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		jitter float64
		want   time.Duration
	}{
		{0, 100 * time.Second},
		{0.5, 105 * time.Second},
		{1, 110 * time.Second},
	} {
		l := ladder{steps: []time.Duration{100 * time.Second}, jitter: func() float64 { return tc.jitter }}
		if d, ok := l.Delay(1); !ok || d != tc.want {
			t.Errorf("jitter %v: %s %v, want %s", tc.jitter, d, ok, tc.want)
		}
	}
}
