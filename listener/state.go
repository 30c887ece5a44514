package listener

import (
	"slices"
	"time"
)

// State is what a [Listener] knows about itself.
type State struct {
	// Connected is true while a session is open on which every LISTEN has been answered.
	Connected bool
	// Healthy is true while notifications are known to arrive: the last probe came back and
	// nothing has cast doubt on it since. While it is false, poll fast.
	Healthy bool
	// Degraded is true while the listener is known not to work, or cannot be checked. Neither
	// Healthy nor Degraded is a listener that is starting, stopped or under suspicion.
	Degraded bool
	// Reason says why the listener is not healthy, on one line; "" if it is.
	Reason string
	// LastEcho is when a probe last came back, by this process's clock; zero if none has.
	LastEcho time.Time
	// Reconnects counts the times that the listener listened again after it had lost its session.
	Reconnects int64
}

// machine is the state of a listener without its connection and its clock. It holds two
// things: the phase, which is what it waits for next, and the trust, which is what it tells.
//
// The phase. At most one point in time is due in each, and at most one probe is out.
//
//   - down: there is no session. Entered at the start and whenever the session is lost, from
//     every other phase. Nothing is due: how long reconnecting may take is not the
//     machine's business, so it never shoots a reconnect in progress. Left by connected.
//   - opening: a session is there, LISTEN has not been answered for every channel. Due: the
//     answer; without it the session is to be closed. Left by listened.
//   - ready: listening, no probe is out. Due: the next probe, at once after LISTEN and
//     when suspicion falls, an interval after an echo, soon after a probe that could not be sent.
//   - sending: a probe is being sent. Nothing is due: sending has a deadline of its own and
//     ends in sent or unsent, and a slow pool must not count against the listener. Its echo may
//     come before sending has returned.
//   - awaiting: the probe is committed. Due: its echo; without it the session is to be closed.
//   - closing: the session was given up. Nothing is due, the loss will be reported.
//
// Echoes of other probes than the one that is out are ignored, and suspicion never
// replaces a probe that is out: otherwise a suspicion every poll would put off the
// deadline for ever.
//
// The trust.
//
//   - unproven: nothing is known yet. The start; quiet.
//   - trusted: the echo of the newest probe came. Entered from everywhere by that echo alone.
//   - suspected: somebody saw work that no notification announced. Entered from trusted only;
//     quiet, since a poll may simply have been faster. The echo clears it, its absence makes it
//     degraded.
//   - degraded: a fault is known. Entered by a lost session, a missing echo, a missing answer
//     to LISTEN, a probe that could not be sent. Only an echo ends it: a reconnect proves nothing.
//
// Every entry into degraded and every return from it to trusted is a change, to be told
// once; so is the first trust. A lasting fault that shows itself during an outage is told as
// well, once per outage.
type machine struct {
	timing timing

	phase    phase
	due      time.Time // zero: nothing is due
	seq      uint64    // of the newest probe
	heard    bool      // this session has heard an echo
	listens  int64     // sessions that have come to listen
	lastEcho time.Time

	trust     trust
	reason    string
	downSince time.Time
	told      []string // the lasting faults told in this outage
	changes   []change
}

// timing holds the durations of [Config] that the machine needs.
type timing struct {
	listen   time.Duration // from the connection to the answer to LISTEN
	interval time.Duration // from an echo to the next probe
	echo     time.Duration // from the probe to its echo, and from an unsent probe to the next
}

type phase int

const (
	down phase = iota
	opening
	ready
	sending
	awaiting
	closing
)

type trust int

const (
	unproven trust = iota
	trusted
	suspected
	degraded
)

// action is what the machine wants done.
type action int

const (
	nothing action = iota
	sendProbe
	closeSession
)

// change is something to be told.
type change struct {
	state State
	// repeated marks a further reason for an outage that was told before.
	repeated bool
	// downFor is how long the outage lasted that ends with this change.
	downFor time.Duration
}

func (m *machine) state() State {
	return State{
		Connected:  m.phase == ready || m.phase == sending || m.phase == awaiting,
		Healthy:    m.trust == trusted,
		Degraded:   m.trust == degraded,
		Reason:     m.reason,
		LastEcho:   m.lastEcho,
		Reconnects: max(0, m.listens-1),
	}
}

// takeChanges returns what is to be told, oldest first, and forgets it.
func (m *machine) takeChanges() []change {
	taken := m.changes
	m.changes = nil
	return taken
}

// connected: a new session is there.
func (m *machine) connected(now time.Time) {
	m.phase, m.due = opening, now.Add(m.timing.listen)
	m.heard = false
}

// listened: LISTEN has been answered for every channel.
func (m *machine) listened(now time.Time) {
	if m.phase != opening {
		return
	}
	m.phase, m.due = ready, now
	m.listens++
}

// tick does what is due. For sendProbe, the probe's number is seq.
func (m *machine) tick(now time.Time) action {
	if m.due.IsZero() || now.Before(m.due) {
		return nothing
	}
	m.due = time.Time{}
	switch m.phase {
	case opening:
		return m.giveUp(unanswered(m.timing.listen), now)
	case awaiting:
		if m.heard {
			return m.giveUp(silent(m.timing.echo), now)
		}
		return m.giveUp(neverHeard(m.timing.echo), now)
	case ready:
		m.phase = sending
		m.seq++
		return sendProbe
	default: // nothing is ever due in the others
		return nothing
	}
}

func (m *machine) giveUp(f fault, now time.Time) action {
	m.phase = closing
	m.degrade(f, now)
	return closeSession
}

// sent: probe seq has been committed.
func (m *machine) sent(seq uint64, now time.Time) {
	if m.phase == sending && m.seq == seq {
		m.phase, m.due = awaiting, now.Add(m.timing.echo)
	}
}

// unsent: probe seq could not be sent. The session is kept, it may be fine.
func (m *machine) unsent(seq uint64, f fault, now time.Time) {
	if m.phase == sending && m.seq == seq {
		m.phase, m.due = ready, now.Add(m.timing.echo)
		m.degrade(f, now)
	}
}

// echo: probe seq came back. It reports whether that was the newest one.
func (m *machine) echo(seq uint64, now time.Time) bool {
	if m.phase != sending && m.phase != awaiting || m.seq != seq {
		return false
	}
	m.phase, m.due = ready, now.Add(m.timing.interval)
	m.heard = true
	m.lastEcho = now

	before := m.trust
	m.trust, m.reason, m.told = trusted, "", nil
	switch before {
	case unproven:
		m.changes = append(m.changes, change{state: m.state()})
	case degraded:
		m.changes = append(m.changes, change{state: m.state(), downFor: now.Sub(m.downSince)})
	case trusted, suspected: // never told, so nothing to take back
	}
	return true
}

// suspect: work was found that no notification announced.
func (m *machine) suspect(reason string, now time.Time) {
	if m.trust != trusted {
		return
	}
	m.trust, m.reason = suspected, reason
	if m.phase == ready {
		m.due = now
	}
}

// lost: the session ended, or could not be opened.
func (m *machine) lost(f fault, now time.Time) {
	given := m.phase == closing // then f only says that the session was closed, which was our doing
	m.phase, m.due = down, time.Time{}
	if !given {
		m.degrade(f, now)
	}
}

// stopped: nobody listens any more, by intent.
func (m *machine) stopped() {
	m.phase, m.due = down, time.Time{}
	m.trust, m.reason = unproven, "stopped"
}

func (m *machine) degrade(f fault, now time.Time) {
	before := m.trust
	m.trust, m.reason = degraded, f.reason
	news := f.lasting != "" && !slices.Contains(m.told, f.lasting)
	if news {
		m.told = append(m.told, f.lasting)
	}
	switch {
	case before != degraded:
		m.downSince = now
		m.changes = append(m.changes, change{state: m.state()})
	case news:
		m.changes = append(m.changes, change{state: m.state(), repeated: true})
	}
}
