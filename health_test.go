package outbox

import (
	"testing"

	"github.com/seed-9a365b49/outbox/listener"
	"github.com/seed-9a365b49/outbox/poller"
)

func TestHealthReason(t *testing.T) {
	t.Parallel()
	h := health(poller.Stats{Owner: true, SettleError: "failed to connect:\n\t127.0.0.1:1: refused\n\t[::1]:1: refused"}, listener.State{})
	want := "what was delivered cannot be marked: failed to connect: 127.0.0.1:1: refused [::1]:1: refused"
	if !h.Degraded || h.Reason != want {
		t.Errorf("degraded %v, %q, want %q", h.Degraded, h.Reason, want)
	}
}
