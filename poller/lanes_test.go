package poller

import (
	"maps"
	"slices"

	"pgregory.net/rapid"
)

// checkLanes compares the books of lanes with what they are about: running and unsettled are the events that
// have been handed out.
func checkLanes(t rapid.TB, ls *lanes, running []*row, unsettled []outcome) {
	t.Helper()
	bytes, inFlight := 0, map[int64]struct{}{}
	fly := func(r *row) {
		if _, twice := inFlight[r.id]; twice {
			t.Fatalf("event %d is in flight twice", r.id)
		}
		inFlight[r.id] = struct{}{}
		bytes += r.size()
	}
	retrying, queued := 0, 0
	for _, r := range running {
		fly(r)
		if l := ls.byKey[r.aggregate]; l == nil || l.current != r {
			t.Fatalf("event %d is running and not its lane's current one: %+v", r.id, l)
		}
		if r.state == due {
			retrying++
		}
	}
	for _, o := range unsettled {
		fly(o.row)
	}
	for key, l := range ls.byKey {
		if l.key != key {
			t.Fatalf("lane %v is filed under %v", l.key, key)
		}
		if len(l.queue) > ls.limits.laneCap {
			t.Fatalf("%d events queue in a lane of %d", len(l.queue), ls.limits.laneCap)
		}
		for i, r := range l.queue {
			fly(r)
			if i > 0 && l.queue[i-1].id >= r.id {
				t.Fatalf("event %d queues behind %d", r.id, l.queue[i-1].id)
			}
		}
		if l.held != nil && len(l.queue) > 0 {
			t.Fatalf("%d events queue behind the failed event %d", len(l.queue), l.held.id)
		}
		queued += len(l.queue)
		_, reloads := ls.reloads[l]
		listed := slices.Contains(ls.fresh.lanes[ls.fresh.head:], l) || slices.Contains(ls.retries.lanes[ls.retries.head:], l)
		free := l.current == nil && l.held == nil
		switch {
		case l.ready != listed, l.ready != (free && len(l.queue) > 0):
			t.Fatalf("a lane's place on the ready lists is wrong: %+v", l)
		case l.reload != reloads, l.more != 0 && len(l.queue) == 0 && l.held == nil && !reloads, l.more == 0 && reloads:
			t.Fatalf("a lane's request to be reloaded is wrong: %+v", l)
		case len(l.queue) == 0 && l.more == 0 && free:
			t.Fatalf("a lane without anything in it was kept: %+v", l)
		}
	}
	for l := range ls.reloads {
		if ls.byKey[l.key] != l {
			t.Fatalf("a lane that is gone asks to be reloaded: %+v", l)
		}
	}
	switch {
	case !maps.Equal(ls.inFlight, inFlight):
		t.Fatalf("in flight are %v by the lanes, %v by the model", ls.inFlight, inFlight)
	case ls.queued != queued:
		t.Fatalf("%d events queue by the lanes, %d by the model", ls.queued, queued)
	case ls.bytes != bytes:
		t.Fatalf("%d bytes in flight by the lanes, %d by the model", ls.bytes, bytes)
	case ls.running != len(running) || ls.running > ls.limits.concurrency:
		t.Fatalf("%d running by the lanes, %d by the model, %d allowed", ls.running, len(running), ls.limits.concurrency)
	case ls.retrying != retrying || ls.retrying > max(1, ls.limits.concurrency/2):
		t.Fatalf("%d retries running by the lanes, %d by the model, of %d slots", ls.retrying, retrying, ls.limits.concurrency)
	}
}
