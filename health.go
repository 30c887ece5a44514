package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/listener"
	"github.com/seed-9a365b49/outbox/poller"
)

// Health is what a worker knows about itself.
type Health struct {
	// Running is true from the moment that Run has found the database in order until it returns.
	Running bool
	// Owner is true while this worker fetches; false on a standby.
	Owner bool
	// Connected is true while a session listens, whether or not anything arrives on it.
	Connected bool
	// Listening is true while notifications are known to arrive.
	Listening bool
	// Degraded is true while something does not work as it should, and Reason says what, in one line: mostly that notifications do not arrive.
	// Events are then found by polling every [Config.DegradedPollInterval]: slower, not less.
	Degraded bool
	Reason   string
	// InFlight is how many events have been fetched and not yet settled, Handling how many of them a handler is
	// working on, Unsettled how many outcomes wait for the database.
	InFlight, Handling, Unsettled int
	// LastSweep is when this owner's last complete walk over the unpublished events ended; zero before that, and on a standby.
	LastSweep time.Time
	// OldestPending is the age of the oldest event that could be handled and is not yet published, by its occurred_at,
	// as of LastSweep.
	OldestPending time.Duration
	// Rescues counts events that only the sweep found. It should stay 0: see "Guarantees" in the README.
	Rescues int64
	// NotEnvelopes counts events whose payload was not an envelope.
	NotEnvelopes int64
	// Reconnects counts how often the listener has connected anew.
	Reconnects int64
	// Wakes counts what had this worker look for events.
	Wakes poller.Wakes
}

// Health returns a snapshot. It is cheap and asks nothing of the database.
func (w *Worker) Health() Health {
	p, l := w.poller.Load(), w.listener.Load()
	if p == nil || l == nil {
		return Health{Reason: "not running"}
	}
	return health(p.Stats(), l.State())
}

// Check returns nil if the worker does its job, as the owner or a standby, and the database answers with the schema that this build needs; else
// why not. [ErrNewerSchema] is returned where a newer build has migrated: this one goes on working, and should be replaced. It asks the database one
// question, so that ctx should have a deadline.
func (w *Worker) Check(ctx context.Context) error {
	db, p := w.database.Load(), w.poller.Load()
	if db == nil || p == nil {
		return errors.New("the worker is not running")
	}
	select {
	case <-p.Started():
	default:
		return errors.New("the worker has not found out yet whether it is the owner or a standby")
	}
	version, err := eventsdb.New(db.pool).SchemaVersion(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return compareVersion("it", version)
}

func health(p poller.Stats, l listener.State) Health {
	h := Health{
		Running:       true,
		Owner:         p.Owner,
		Connected:     l.Connected,
		Listening:     l.Healthy,
		Degraded:      l.Degraded,
		Reason:        l.Reason,
		InFlight:      p.InFlight,
		Handling:      p.Handling,
		Unsettled:     p.Unsettled,
		LastSweep:     p.LastSweep,
		OldestPending: p.OldestPending,
		Rescues:       p.Rescues,
		NotEnvelopes:  p.NotEnvelopes,
		Reconnects:    l.Reconnects,
		Wakes:         p.Wakes,
	}
	switch {
	case p.SettleError != "":
		h.Degraded, h.Reason = true, "what was delivered cannot be marked: "+strings.Join(strings.Fields(p.SettleError), " ") // pgx breaks lines
	case h.Degraded:
	case p.Unannounced:
		h.Degraded, h.Reason = true, "events arrive that no notification announced: see `outbox migrate notify`"
	case p.Owner && p.Gate == poller.GateLost:
		h.Degraded, h.Reason = true, "the session of the gate is not connected: events are found by polling"
	}
	return h
}
