package poller

// task is one of the things that the loop does.
type task int

const (
	reloading task = iota
	lookingForDue
	fetching
	sweeping
	tasks  int  = iota
	noTask task = -1
)

// turns shares the loop among its tasks: of those that have something to do, the one whose last turn is the longest ago is
// next. So whatever always has something to do leaves every other task a turn after at most as many as there are
// others. It is pure.
type turns struct {
	now  int
	last [tasks]int
}

// next returns the task that is next, and takes it for done. Between those that have had none it keeps to their order.
func (t *turns) next(ready [tasks]bool) task {
	chosen := noTask
	for i := range task(tasks) {
		if ready[i] && (chosen == noTask || t.last[i] < t.last[chosen]) {
			chosen = i
		}
	}
	if chosen != noTask {
		t.now++
		t.last[chosen] = t.now
	}
	return chosen
}
