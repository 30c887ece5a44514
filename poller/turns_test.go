package poller

import (
	"testing"

	"pgregory.net/rapid"
)

func TestTurns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			turns  turns
			waited [tasks]int
		)
		for range 100 {
			var ready [tasks]bool
			some := false
			for i := range ready {
				ready[i] = rapid.Bool().Draw(t, "ready")
				some = some || ready[i]
			}
			chosen := turns.next(ready)
			if some != (chosen != noTask) || some && !ready[chosen] {
				t.Fatalf("of %v task %d is next", ready, chosen)
			}
			for i := range waited {
				if waited[i]++; !ready[i] || task(i) == chosen {
					waited[i] = 0
				}
				if waited[i] >= tasks {
					t.Fatalf("task %d has waited for %d turns", i, waited[i])
				}
			}
		}
	})
}
