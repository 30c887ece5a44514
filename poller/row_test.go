package poller

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-9a365b49/outbox/event"
)

var testNamespace = uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

func sampleRow(payload string) *row {
	return &row{
		id: 42, aggregate: aggregate{"order", uuid.UUID{15: 7}}, eventType: "OrderPaid", payload: json.RawMessage(payload),
		occurredAt: pgtype.Timestamptz{Time: noon.In(time.FixedZone("", 3600)), Valid: true}, retryCount: 2, state: due,
		delivered: []string{"mail"}, dead: []string{"audit"},
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	t.Run("an envelope", func(t *testing.T) {
		t.Parallel()
		d, isEnvelope, err := sampleRow(`{"version": 3, "data": {"n": 9007199254740993}, "metadata": {"correlation_id": "c"}}`).decode(testNamespace)
		if err != nil || !isEnvelope {
			t.Fatalf("envelope: %t, %v", isEnvelope, err)
		}
		e := d.Event
		if e.ID != 42 || e.AggregateType != "order" || e.AggregateID != (uuid.UUID{15: 7}) || e.Type != "OrderPaid" {
			t.Errorf("event %+v", e)
		}
		if e.Version != 3 || string(e.Data) != `{"n": 9007199254740993}` || e.Metadata.CorrelationID != "c" {
			t.Errorf("version %d, data %s, metadata %+v", e.Version, e.Data, e.Metadata)
		}
		if !e.OccurredAt.Equal(noon) || e.OccurredAt.Location() != time.UTC || e.PublicID != event.PublicID(testNamespace, 42, noon) {
			t.Errorf("occurred at %s, public id %s", e.OccurredAt, e.PublicID)
		}
		if e.Attempt != 3 || d.RetryCount != 2 || len(d.Delivered) != 1 || d.Delivered[0] != "mail" || len(d.Dead) != 1 || d.Dead[0] != "audit" {
			t.Errorf("attempt %d, delivery %+v", e.Attempt, d)
		}
	})
	t.Run("a payload that is not an envelope is delivered whole, with version 0", func(t *testing.T) {
		t.Parallel()
		for _, payload := range []string{`{"version": 0, "data": 1}`, `{"amount": 1.50}`, `[1, 2]`, `"text"`, `null`} {
			d, isEnvelope, err := sampleRow(payload).decode(testNamespace)
			if err != nil || isEnvelope || d.Event.Version != 0 || string(d.Event.Data) != payload {
				t.Errorf("%s: envelope: %t, %v, version %d, data %s", payload, isEnvelope, err, d.Event.Version, d.Event.Data)
			}
		}
	})
	t.Run("a time that JSON cannot say", func(t *testing.T) {
		t.Parallel()
		year := func(y int) pgtype.Timestamptz {
			return pgtype.Timestamptz{Time: time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC), Valid: true}
		}
		for name, tc := range map[string]struct {
			at pgtype.Timestamptz
			ok bool
		}{
			"null":      {pgtype.Timestamptz{}, false},
			"infinity":  {pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.Infinity}, false},
			"-infinity": {pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}, false},
			"-1":        {year(-1), false},
			"0":         {year(0), true},
			"9999":      {year(9999), true},
			"10000":     {year(10000), false},
			// Year 10000 only in UTC, which is what is delivered.
			"10000 UTC": {pgtype.Timestamptz{Time: time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -2*3600)), Valid: true}, false},
		} {
			r := sampleRow(`{"version": 1, "data": 1}`)
			r.occurredAt = tc.at
			d, _, err := r.decode(testNamespace)
			if (err == nil) != tc.ok || (err != nil && !errors.Is(err, errNotATime)) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if _, err := json.Marshal(d.Event); err != nil {
				t.Errorf("%s: the delivered event cannot be marshalled: %v", name, err)
			}
		}
	})
}

func TestRowSize(t *testing.T) {
	t.Parallel()
	small, large := sampleRow(`1`), sampleRow(string(make([]byte, 1000)))
	if d := large.size() - small.size(); d != 999 || small.size() <= 1 {
		t.Errorf("sizes %d and %d", small.size(), large.size())
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version": 1, "data": {}}`), int64(0), int32(0), int8(0))
	f.Add([]byte(`{"version": 1, "data": {}, "metadata": {"traceparent": 1}}`), int64(math.MaxInt64), int32(math.MaxInt32), int8(0))
	f.Add([]byte(`null`), int64(math.MinInt64), int32(9), int8(1))
	f.Fuzz(func(t *testing.T, payload []byte, us int64, retryCount int32, infinity int8) {
		if !json.Valid(payload) || retryCount < 0 {
			t.Skip("the column's type does not allow it")
		}
		r := sampleRow(string(payload))
		r.occurredAt = pgtype.Timestamptz{Time: time.UnixMicro(us), Valid: true, InfinityModifier: pgtype.InfinityModifier(infinity % 2)}
		r.retryCount = retryCount
		d, isEnvelope, err := r.decode(testNamespace)
		if err != nil {
			if !errors.Is(err, errNotATime) {
				t.Error(err)
			}
			return
		}
		if isEnvelope != (d.Event.Version > 0) || (!isEnvelope && string(d.Event.Data) != string(payload)) {
			t.Errorf("envelope: %t, version %d, data %s", isEnvelope, d.Event.Version, d.Event.Data)
		}
		if d.Event.Attempt != int(retryCount)+1 {
			t.Errorf("attempt %d after %d failures", d.Event.Attempt, retryCount)
		}
		if _, err := json.Marshal(d.Event); err != nil {
			t.Error(err)
		}
	})
}
