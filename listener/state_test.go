package listener

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testTiming = timing{listen: 10 * time.Second, interval: 15 * time.Second, echo: time.Second}

// script drives a machine along a clock that only moves when told to.
type script struct {
	t   *testing.T
	m   machine
	now time.Time
}

func newScript(t *testing.T) *script {
	return &script{t: t, m: machine{timing: testTiming, reason: "starting"}, now: time.Unix(1_000_000, 0)}
}

func (s *script) connect() *script { s.m.connected(s.now); return s }
func (s *script) listen() *script  { s.m.listened(s.now); return s }
func (s *script) sent() *script    { s.m.sent(s.m.seq, s.now); return s }
func (s *script) unsent() *script {
	s.m.unsent(s.m.seq, unsent(errors.New("pool away")), s.now)
	return s
}
func (s *script) lose() *script            { s.m.lost(fault{reason: "reset"}, s.now); return s }
func (s *script) suspect(r string) *script { s.m.suspect(r, s.now); return s }

func (s *script) echo() *script {
	s.t.Helper()
	if !s.m.echo(s.m.seq, s.now) {
		s.t.Fatal("the echo of the newest probe was not taken")
	}
	return s
}

func (s *script) after(d time.Duration) *script { s.now = s.now.Add(d); return s }

func (s *script) tick(want action) *script {
	s.t.Helper()
	if got := s.m.tick(s.now); got != want {
		s.t.Fatalf("tick: action %d, want %d", got, want)
	}
	return s
}

// healthy goes the normal way from the start to the first echo.
func (s *script) healthy() *script {
	s.t.Helper()
	return s.connect().listen().tick(sendProbe).sent().echo()
}

func (s *script) told() []change { return s.m.takeChanges() }

func (s *script) want(connected, healthy, degraded bool, reason string) {
	s.t.Helper()
	got := s.m.state()
	want := State{Connected: connected, Healthy: healthy, Degraded: degraded, Reason: reason, LastEcho: got.LastEcho, Reconnects: got.Reconnects}
	if got != want {
		s.t.Fatalf("state\n got %+v\nwant %+v", got, want)
	}
}

func (s *script) wantTold(want ...bool) {
	s.t.Helper()
	var got []bool
	for _, c := range s.told() {
		got = append(got, c.state.Degraded)
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("told (degraded?): %v, want %v", got, want)
	}
}

func TestMachine(t *testing.T) {
	t.Parallel()
	const (
		good = false
		bad  = true
	)
	noEcho := silent(testTiming.echo).reason
	neverEcho := neverHeard(testTiming.echo).reason

	for name, run := range map[string]func(s *script){
		"starts neither healthy nor degraded, and tells nothing": func(s *script) {
			s.want(false, false, false, "starting")
			s.connect().want(false, false, false, "starting")
			s.listen().want(true, false, false, "starting")
			s.wantTold()
		},
		"probes at once after LISTEN and not before": func(s *script) {
			s.tick(nothing).connect().tick(nothing).listen().tick(sendProbe)
		},
		"is healthy with the first echo and tells it": func(s *script) {
			s.healthy().want(true, true, false, "")
			s.wantTold(good)
			if got := s.m.state(); got.LastEcho != s.now || got.Reconnects != 0 {
				s.t.Fatalf("state %+v", got)
			}
		},
		"takes an echo that arrives before sending has returned": func(s *script) {
			s.connect().listen().tick(sendProbe).echo().sent().want(true, true, false, "")
			s.after(testTiming.echo).tick(nothing)
		},
		"probes again an interval after the echo": func(s *script) {
			s.healthy().after(testTiming.interval - 1).tick(nothing).after(1).tick(sendProbe)
		},
		"stays healthy while a probe is out": func(s *script) {
			s.healthy().after(testTiming.interval).tick(sendProbe).sent().after(testTiming.echo-1).tick(nothing).want(true, true, false, "")
		},
		"does not count the time of sending as silence": func(s *script) {
			s.healthy().after(testTiming.interval).tick(sendProbe)
			s.after(time.Minute).tick(nothing).sent().tick(nothing)
			s.after(testTiming.echo).tick(closeSession)
		},
		"gives a session up that heard probes and hears no more": func(s *script) {
			s.healthy().wantTold(good)
			s.after(testTiming.interval).tick(sendProbe).sent().after(testTiming.echo).tick(closeSession)
			s.want(false, false, true, noEcho)
			s.wantTold(bad)
		},
		"advises a direct address if a session never heard a probe": func(s *script) {
			s.connect().listen().tick(sendProbe).sent().after(testTiming.echo).tick(closeSession)
			s.want(false, false, true, neverEcho)
			s.wantTold(bad)
		},
		"gives a session up whose LISTEN is not answered": func(s *script) {
			s.connect().after(testTiming.listen - 1).tick(nothing).after(1).tick(closeSession)
			s.want(false, false, true, unanswered(testTiming.listen).reason)
		},
		"keeps the reason when the closed session is reported lost": func(s *script) {
			s.healthy().after(testTiming.interval).tick(sendProbe).sent().after(testTiming.echo).tick(closeSession)
			s.lose().want(false, false, true, noEcho)
			s.wantTold(good, bad)
		},
		"has nothing due while reconnecting, however long it takes": func(s *script) {
			s.healthy().after(testTiming.interval).tick(sendProbe).sent().lose().after(time.Hour).tick(nothing)
		},
		"is degraded until an echo, not until a reconnect": func(s *script) {
			s.healthy().lose().want(false, false, true, "reset")
			s.connect().listen().want(true, false, true, "reset")
			s.tick(sendProbe).sent().echo().want(true, true, false, "")
			s.wantTold(good, bad, good)
			if got := s.m.state().Reconnects; got != 1 {
				s.t.Fatalf("reconnects: %d", got)
			}
		},
		"tells an outage once, and how long it was": func(s *script) {
			s.healthy().told()
			s.lose().after(time.Second).lose().after(time.Second).lose().after(time.Second)
			s.connect().listen().tick(sendProbe).sent().echo()
			told := s.told()
			if len(told) != 2 || told[0].downFor != 0 || told[1].downFor != 3*time.Second {
				s.t.Fatalf("told %+v", told)
			}
		},
		"tells a lasting fault once more during an outage, and only once": func(s *script) {
			s.healthy().told()
			password := fault{reason: "wrong password", lasting: "28P01"}
			s.lose()
			for range 3 {
				s.m.lost(password, s.now)
				s.m.lost(fault{reason: "refused"}, s.now)
			}
			told := s.told()
			if len(told) != 2 || told[0].repeated || !told[1].repeated || told[1].state.Reason != "wrong password" {
				s.t.Fatalf("told %+v", told)
			}
			s.connect().listen().tick(sendProbe).sent().echo().told()
			s.lose().told()
			s.m.lost(password, s.now)
			if told := s.told(); len(told) != 1 {
				s.t.Fatalf("in the next outage: told %+v", told)
			}
		},
		"ignores the echo of a probe of an earlier session": func(s *script) {
			s.connect().listen().tick(sendProbe).sent()
			old := s.m.seq
			s.lose().connect().listen()
			if s.m.echo(old, s.now) {
				s.t.Fatal("taken before the next probe")
			}
			s.tick(sendProbe).sent()
			if s.m.echo(old, s.now) {
				s.t.Fatal("taken for the next probe")
			}
		},
		"ignores that a probe of an earlier session was sent after all": func(s *script) {
			s.connect().listen().tick(sendProbe)
			old := s.m.seq
			s.lose().connect().listen().tick(sendProbe)
			s.m.sent(old, s.now)
			s.m.unsent(old, unsent(errors.New("late")), s.now)
			s.after(time.Hour).tick(nothing).want(true, false, true, "reset")
		},
		"is degraded if a probe cannot be sent, keeps the session and tries again soon": func(s *script) {
			s.healthy().after(testTiming.interval).tick(sendProbe).unsent()
			s.want(true, false, true, "probe could not be sent: pool away")
			s.after(testTiming.echo-1).tick(nothing).after(1).tick(sendProbe).sent().echo().want(true, true, false, "")
			s.wantTold(good, bad, good)
		},
		"a suspicion is quiet and probes at once": func(s *script) {
			s.healthy().after(time.Second).suspect("a poll was first").want(true, false, false, "a poll was first")
			s.tick(sendProbe).sent().echo().want(true, true, false, "")
			s.wantTold(good)
		},
		"a suspicion without an echo is an outage": func(s *script) {
			s.healthy().suspect("a poll was first").tick(sendProbe).sent().after(testTiming.echo).tick(closeSession)
			s.want(false, false, true, noEcho)
			s.wantTold(good, bad)
		},
		"further suspicions do not put off the deadline": func(s *script) {
			s.healthy().suspect("first").tick(sendProbe).sent()
			for range 4 {
				s.after(testTiming.echo / 4).suspect("again")
			}
			s.want(true, false, false, "first")
			s.tick(closeSession)
		},
		"a suspicion while a probe is out waits for that one": func(s *script) {
			s.healthy().after(testTiming.interval).tick(sendProbe).sent().suspect("a poll was first").tick(nothing)
			s.echo().want(true, true, false, "")
		},
		"a suspicion says nothing new about a listener that is not healthy": func(s *script) {
			s.suspect("a poll was first").want(false, false, false, "starting")
			s.healthy().lose().suspect("a poll was first").want(false, false, true, "reset")
		},
		"is quiet when stopped": func(s *script) {
			s.healthy().told()
			s.m.stopped()
			s.want(false, false, false, "stopped")
			s.after(time.Hour).tick(nothing).wantTold()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(newScript(t))
		})
	}
}

// TestMachineKeepsItsPromises runs the machine through random histories beside a model that
// remembers only what was promised: which probe is out, whether there is a session, whether
// anything bad happened since the last echo.
func TestMachineKeepsItsPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			m   = machine{timing: testTiming}
			now = time.Unix(1_000_000, 0)

			session   bool      // pgxlisten has one
			listening bool      // and LISTEN was answered
			closed    bool      // and the machine has given it up
			opened    time.Time // when it was opened
			out       uint64    // the probe that is out; 0: none
			pending   bool      // sending it has not returned
			sentAt    time.Time // when it had been sent
			healthy   bool      // an echo came and nothing bad since
			told      bool      // the last change told: healthy
			anyTold   bool      // there was one
			listens   int64     // sessions that listened
			issued    = map[uint64]bool{}

			heard     bool // this session has heard an echo
			neverTold bool // that a session never heard one, in this outage: the only lasting fault here
			repeats   bool // it may be told once more now
		)
		bad := func() { healthy, out, pending = false, 0, false }
		// Mostly the newest probe, so that histories with echoes are common.
		drawProbe := func(t *rapid.T) uint64 {
			return rapid.OneOf(rapid.Just(m.seq), rapid.Just(m.seq), rapid.Uint64Range(0, m.seq+1)).Draw(t, "seq")
		}

		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(1, int64(20*time.Second)).Draw(t, "d")))
			},
			"tick": func(t *rapid.T) {
				switch m.tick(now) {
				case sendProbe:
					if !listening || closed || out != 0 {
						t.Fatalf("probe sent: listening %v, closed %v, probe %d out", listening, closed, out)
					}
					if issued[m.seq] {
						t.Fatalf("probe %d sent twice", m.seq)
					}
					issued[m.seq] = true
					out, pending = m.seq, true
				case closeSession:
					overdueListen := session && !listening && !now.Before(opened.Add(testTiming.listen))
					overdueEcho := out != 0 && !pending && !now.Before(sentAt.Add(testTiming.echo))
					if closed || !overdueListen && !overdueEcho {
						t.Fatal("a session was closed that owed nothing")
					}
					repeats = overdueEcho && !heard && !neverTold
					neverTold = neverTold || repeats
					closed = true
					bad()
				case nothing:
					if out != 0 && !pending && !now.Before(sentAt.Add(testTiming.echo)) {
						t.Fatal("an overdue echo was not noticed")
					}
					if session && !closed && !listening && !now.Before(opened.Add(testTiming.listen)) {
						t.Fatal("an overdue LISTEN was not noticed")
					}
				}
			},
			"connect": func(t *rapid.T) {
				if session {
					t.Skip()
				}
				m.connected(now)
				session, opened, heard = true, now, false
			},
			"listen": func(t *rapid.T) {
				if !session || listening {
					t.Skip()
				}
				m.listened(now)
				if !closed {
					listening = true
					listens++
				}
			},
			"lose": func(*rapid.T) {
				m.lost(fault{reason: "lost"}, now)
				session, listening, closed = false, false, false
				bad()
			},
			"sent": func(t *rapid.T) {
				seq := drawProbe(t)
				m.sent(seq, now)
				if pending && seq == out {
					pending, sentAt = false, now
				}
			},
			"unsent": func(t *rapid.T) {
				seq := drawProbe(t)
				m.unsent(seq, fault{reason: "unsent"}, now)
				if pending && seq == out {
					bad()
				}
			},
			"echo": func(t *rapid.T) {
				seq := drawProbe(t)
				taken := m.echo(seq, now)
				if want := out != 0 && seq == out; taken != want {
					t.Fatalf("echo of probe %d taken: %v, probe %d is out", seq, taken, out)
				}
				if taken {
					out, pending, healthy = 0, false, true
					heard, neverTold = true, false
				}
			},
			"suspect": func(*rapid.T) {
				before := m.due
				m.suspect("a poll was first", now)
				if out != 0 && m.due != before {
					t.Fatal("a suspicion moved the deadline of a probe that is out")
				}
				healthy = false
			},
			"": func(t *rapid.T) {
				state := m.state()
				if state.Healthy != healthy {
					t.Fatalf("healthy: %v, the model says %v", state.Healthy, healthy)
				}
				if state.Healthy && (state.Degraded || state.Reason != "" || !state.Connected) {
					t.Fatalf("contradictory: %+v", state)
				}
				if want := listening && !closed; state.Connected != want {
					t.Fatalf("connected: %v, the model says %v", state.Connected, want)
				}
				if want := max(0, listens-1); state.Reconnects != want {
					t.Fatalf("reconnects: %d, the model says %d", state.Reconnects, want)
				}
				for _, c := range m.takeChanges() {
					if c.repeated {
						if !repeats {
							t.Fatal("a passing fault was told again")
						}
						repeats = false
						continue
					}
					if now := !c.state.Degraded; anyTold && now == told {
						t.Fatalf("told twice that healthy is %v", now)
					}
					told, anyTold = !c.state.Degraded, true
				}
				if state.Degraded && (!anyTold || told) || state.Healthy && (!anyTold || !told) {
					t.Fatalf("%+v was not told", state)
				}
				if state.Connected && out == 0 && m.due.IsZero() {
					t.Fatal("no probe is out and none is due: a silent connection would go unnoticed")
				}
			},
		})
	})
}
