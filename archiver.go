package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/admin"
)

// archiver deletes old events once a day, if this worker is the owner then.
type archiver struct {
	at      daily
	owner   func() bool
	archive func(context.Context) (admin.Archived, error)
	log     zerolog.Logger
}

// run archives until ctx ends. What an archive that was cut off has left, the next day's finds.
func (a *archiver) run(ctx context.Context) {
	for {
		timer := time.NewTimer(time.Until(a.at.after(time.Now())))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if a.owner() {
			a.once(ctx)
		}
	}
}

func (a *archiver) once(ctx context.Context) {
	began := time.Now()
	archived, err := a.archive(ctx)
	archived.Log(a.log, err, time.Since(began))
}

// daily is a time of the day.
type daily struct {
	hour, minute int
	zone         *time.Location
}

// parseDaily reads 04:00, and the name of a time zone (IANA; empty: UTC).
func parseDaily(at, zone string) (daily, error) {
	t, err := time.Parse("15:04", at)
	if err != nil {
		return daily{}, fmt.Errorf("ArchiveAt: %q is not a time of the day, such as 04:00", at)
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		return daily{}, fmt.Errorf("ArchiveZone: %q is not a time zone, such as Europe/Berlin", zone)
	}
	return daily{t.Hour(), t.Minute(), location}, nil
}

// after returns the next one after t. Where a change of the clocks leaves it out, it is an hour off.
func (d daily) after(t time.Time) time.Time {
	year, month, day := t.In(d.zone).Date()
	for ; ; day++ {
		if next := time.Date(year, month, day, d.hour, d.minute, 0, 0, d.zone); next.After(t) {
			return next
		}
	}
}
