package demo

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

func TestLines(t *testing.T) {
	t.Parallel()

	t.Run("read as a table of 79 columns", func(t *testing.T) {
		t.Parallel()
		a := attempt{
			shown: time.Date(2025, 3, 9, 14, 59, 58, 120e6, time.UTC), eventType: orderPlaced,
			aggregate: aggregate{"order", uuid.MustParse("018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091")},
			number:    1, latency: 842 * time.Microsecond, outcome: delivered,
		}
		retry := a
		retry.number, retry.latency, retry.outcome = 2, 12340*time.Microsecond, failed
		retry.caused, retry.retryIn, retry.reason = true, 2*time.Second, "the fraud check\ntimed out"
		got := strings.Join(append(append([]string{heading}, a.lines(false)...), retry.lines(false)...), "\n")
		want := strings.Join([]string{
			"time          latency  event                aggregate        try  outcome",
			"14:59:58.120  0.84 ms    OrderPlaced        order 018f6b       1  delivered",
			"14:59:58.120 +12.3 ms  > OrderPlaced        order 018f6b       2  retry in 2s",
			"                         the fraud check timed out",
		}, "\n")
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})

	t.Run("fit a terminal of 80 columns, whatever happens", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			kinds := []string{"order", "payment", "shipment"}
			types := []string{orderPlaced, paymentAuthorized, shipmentRequested, shipmentPickedUp, orderCompleted}
			a := attempt{
				eventType: rapid.SampledFrom(types).Draw(t, "type"),
				aggregate: aggregate{kind: rapid.SampledFrom(kinds).Draw(t, "kind")},
				number:    rapid.IntRange(1, 3).Draw(t, "attempt"),
				latency:   time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "latency")),
				waited:    rapid.Bool().Draw(t, "waited"),
				caused:    rapid.Bool().Draw(t, "caused"),
				outcome:   rapid.SampledFrom([]outcome{delivered, failed, dead}).Draw(t, "outcome"),
				retryIn:   2 * time.Second,
				reason:    rapid.String().Draw(t, "reason"),
			}
			for _, line := range a.lines(false) {
				if n := len([]rune(line)); n > width {
					t.Errorf("%d columns: %q", n, line)
				}
			}
		})
	})

	t.Run("have colours only where they are welcome", func(t *testing.T) {
		t.Parallel()
		for _, a := range []attempt{{outcome: delivered}, {outcome: failed, reason: "x"}, {outcome: dead}, {outcome: delivered, number: 2}} {
			if text := strings.Join(a.lines(false), ""); strings.Contains(text, "\x1b") {
				t.Errorf("coloured: %q", text)
			}
			if text := strings.Join(a.lines(true), ""); !strings.Contains(text, "\x1b[") {
				t.Errorf("not coloured: %q", text)
			}
		}
	})
}

func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                         "0.00 ms",
		842 * time.Microsecond:    "0.84 ms",
		9994 * time.Microsecond:   "9.99 ms",
		9995 * time.Microsecond:   "10.0 ms",
		99949 * time.Nanosecond:   "0.10 ms",
		99949 * time.Microsecond:  "99.9 ms",
		99950 * time.Microsecond:  "100 ms",
		999499 * time.Microsecond: "999 ms",
		999500 * time.Microsecond: "1.00 s",
		9994 * time.Millisecond:   "9.99 s",
		9995 * time.Millisecond:   "10 s",
		90 * time.Second:          "90 s",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestAbilities(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		terminal bool
		env      string
		live     bool
		colours  paint
	}{
		{terminal: true, live: true, colours: true},
		{terminal: true, env: "NO_COLOR=1", live: true},
		{terminal: true, env: "TERM=dumb"},
		{terminal: false},
	} {
		name, value, _ := strings.Cut(c.env, "=")
		live, colours := abilities(c.terminal, func(asked string) string {
			if asked == name {
				return value
			}
			return ""
		})
		if live != c.live || colours != c.colours {
			t.Errorf("%+v: live %t, colours %t", c, live, colours)
		}
	}
}

func TestScreen(t *testing.T) {
	t.Parallel()

	t.Run("keeps the status below the stream on a terminal", func(t *testing.T) {
		t.Parallel()
		shown := make(chan struct{})
		out := &output{onWrite: func(text string) {
			if strings.HasSuffix(text, "\r\x1b[Kline\nSTATUS") {
				close(shown)
			}
		}}
		s := &screen{out: out, live: true, more: make(chan struct{}, 1)}
		asked := make(chan struct{}, 1)
		end := s.stream(func() string {
			select {
			case asked <- struct{}{}:
			default:
			}
			return "STATUS"
		})
		await(t, asked)
		s.aside("line")
		await(t, shown)
		end()
		if text := out.String(); !strings.HasSuffix(text, "\r\x1b[K") {
			t.Errorf("the status stays in the end: %q", text)
		}
	})

	t.Run("writes the status as a line of its own elsewhere", func(t *testing.T) {
		t.Parallel()
		shown := make(chan struct{}, 100)
		out := &output{onWrite: func(text string) {
			if strings.HasSuffix(text, "-- STATUS\n") {
				shown <- struct{}{}
			}
		}}
		s := &screen{out: out, more: make(chan struct{}, 1)}
		end := s.stream(func() string { return "STATUS" })
		await(t, shown)
		end()
	})

	t.Run("shows so many deliveries a second, and everything that is out of the ordinary", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		s := newScreen(&out, func(string) string { return "" }, func() {})
		for range attemptsPerSecond + 3 {
			s.attempt(attempt{outcome: delivered, number: 1})
		}
		s.attempt(attempt{outcome: failed, number: 1})
		s.attempt(attempt{outcome: delivered, number: 2})
		s.attempt(attempt{outcome: delivered, number: 1, waited: true})
		s.attempt(attempt{outcome: dead, number: 3})
		if n := len(s.take()); n != attemptsPerSecond+4 {
			t.Errorf("%d lines", n)
		}
		s.refill()
		if lines := s.take(); len(lines) != 1 || lines[0] != "... and 3 more deliveries" {
			t.Errorf("the next second begins with %q", lines)
		}
		s.attempt(attempt{outcome: delivered, number: 1})
		if n := len(s.take()); n != 1 {
			t.Errorf("%d lines in the next second", n)
		}
	})
}

func await(t *testing.T, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(time.Minute):
		t.Fatal("did not happen")
	}
}

func TestWorkerLog(t *testing.T) {
	t.Parallel()
	var lines []string
	log := workerLog(func(line string) { lines = append(lines, line) }, false)
	log.Info().Msg("listener healthy")
	log.Warn().Str("error", "told by the demo").Msg("event_failed")
	log.Error().Str("error", "told by the demo").Msg("event_dead")
	log.Warn().Str("reason", "no echo").Int("reconnects", 2).Msg("listener degraded")
	log.Error().Str("error", strings.Repeat("long ", 100)).Bytes("stack", []byte("goroutine 1")).Msg("handler_panicked")
	if len(lines) != 2 || lines[0] != "worker: listener degraded reason=no echo reconnects=2" ||
		len(lines[1]) > width || !strings.HasPrefix(lines[1], "worker: handler_panicked error=long long") {
		t.Errorf("%q", lines)
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()

	t.Run("are values of the sample, by nearest rank", func(t *testing.T) {
		t.Parallel()
		var s sample
		for i := range 200 {
			s.add(time.Duration(200 - i))
		}
		if got, want := percentilesOf(s.copy()), (percentiles{N: 200, P50: 100, P95: 190, P99: 198, Max: 200}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got, want := percentilesOf([]time.Duration{7}), (percentiles{1, 7, 7, 7, 7}); got != want {
			t.Errorf("of one: %+v", got)
		}
		if got := percentilesOf(nil); got != (percentiles{}) {
			t.Errorf("of none: %+v", got)
		}
	})

	t.Run("are those of the last values", func(t *testing.T) {
		t.Parallel()
		var s sample
		for i := range sampleSize + 5 {
			s.add(time.Duration(sampleSize + 5 - i)) // the largest come first
		}
		if got := percentilesOf(s.copy()); got.N != sampleSize || got.Max != sampleSize {
			t.Errorf("got %+v", got)
		}
	})
}

func TestStories(t *testing.T) {
	t.Parallel()

	t.Run("have one dead letter, and failures, bursts and rollbacks again and again", func(t *testing.T) {
		t.Parallel()
		s := newStories(DefaultRate, 3, 1)
		var deadly, failing, bursts, rolledBack int
		for s.count() < 500 {
			next := s.scene(1000, false)
			switch {
			case next.abandon:
				rolledBack++
				continue
			case len(next.stories) > 1:
				bursts++
			case next.trouble != nil && next.trouble.Attempts == 3:
				deadly++
			case next.trouble != nil:
				failing++
			}
			for _, st := range next.stories {
				if st.next[0] == orderPlaced { // what its handler and that of the capture would do
					s.resume(st.payment())
				}
				if st.next[0] == paymentCaptured {
					s.resume(st.shipment())
				}
				st.next = st.next[1:]
				s.resume(st)
			}
		}
		if deadly != 1 || failing < 5 || bursts < 3 || rolledBack < 5 {
			t.Errorf("%d dead letters, %d failures, %d bursts, %d rollbacks", deadly, failing, bursts, rolledBack)
		}
	})

	t.Run("let nothing new go wrong near the end but the dead letter", func(t *testing.T) {
		t.Parallel()
		s := newStories(DefaultRate, 3, 1)
		s.events = 1000
		for range 100 {
			if tr := s.goesWrong(orderPlaced, true); tr != nil {
				t.Fatalf("%+v", tr)
			}
		}
		if tr := s.goesWrong(paymentAuthorized, true); tr == nil || tr.Attempts != 3 {
			t.Errorf("the dead letter: %+v", tr)
		}
		if tr := s.goesWrong(paymentAuthorized, true); tr != nil {
			t.Errorf("a second dead letter: %+v", tr)
		}
	})

	t.Run("never publish more than they may", func(t *testing.T) {
		t.Parallel()
		s := newStories(DefaultRate, 3, 1)
		for s.count() < 150 {
			before := s.count()
			s.scene(1, false)
			if n := s.count() - before; n > 1 {
				t.Fatalf("%d events", n)
			}
		}
	})

	t.Run("give every type a handler", func(t *testing.T) {
		t.Parallel()
		s := story{next: []string{orderPlaced}}
		for _, eventType := range append(append(s.payment().next, s.shipment().next...), s.next...) {
			if subscribers[eventType] == "" {
				t.Errorf("%s has none", eventType)
			}
		}
		for eventType := range reasons {
			if subscribers[eventType] == "" {
				t.Errorf("%s can fail, but nobody handles it", eventType)
			}
		}
	})
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:p%40@h:5433/old?sslmode=disable": "postgres://u:p%40@h:5433/new?sslmode=disable",
		"postgresql://h": "postgresql://h/new",
		"postgres:///old?host=%2Ftmp&dbname=x&database=y": "postgres:///new?host=%2Ftmp",
		"host=/tmp user=u dbname=old":                     "host=/tmp user=u dbname=old dbname=new",
	} {
		if got, err := withDatabase(address, "new"); err != nil || got != want {
			t.Errorf("%s: got %s (%v), want %s", address, got, err, want)
		}
		config, err := pgx.ParseConfig(want)
		if err != nil || config.Database != "new" {
			t.Errorf("%s leads to %q (%v)", want, config.Database, err)
		}
	}
	if _, err := withDatabase("postgres://h:port/old", "new"); err == nil {
		t.Error("a URL that cannot be parsed is no error")
	}
}

func TestPlural(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"1 event":   plural(1, "event"),
		"0 events":  plural(0, "event"),
		"2 retries": plural(2, "retry"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
