package event_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/event"
)

// The answers were computed with Python's uuid.uuid5(namespace, "id:µs").
func TestPublicIDKnownAnswers(t *testing.T) {
	t.Parallel()
	namespace := uuid.MustParse("6f1d3f0e-9c1b-4d8a-8a52-3b1f0d6a7c11")
	for _, tt := range []struct {
		namespace uuid.UUID
		id        int64
		at        time.Time
		want      string
	}{
		{namespace, 1, time.Unix(0, 0), "4b39baff-71b0-5286-adb4-06302bbf71a8"},
		{namespace, 1, time.Date(2025, 1, 1, 0, 0, 0, 123456000, time.UTC), "4138b484-929c-5ef7-8ede-ba914ff26e12"},
		{namespace, math.MaxInt64, time.UnixMicro(-1), "690cad45-bd29-5616-a5e3-70c3775834e2"},
		{namespace, 42, time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC), "54910364-0647-5db6-9228-27e1a74f0f98"},
		{uuid.NameSpaceDNS, 1, time.Date(2025, 1, 1, 0, 0, 0, 123456000, time.UTC), "28c9f42a-fd50-5798-82b6-90c1b74016b7"},
	} {
		if got := event.PublicID(tt.namespace, tt.id, tt.at).String(); got != tt.want {
			t.Errorf("id %d at %s: got %s, want %s", tt.id, tt.at, got, tt.want)
		}
	}
}

func TestPublicID(t *testing.T) {
	t.Parallel()
	namespace := uuid.MustParse("6f1d3f0e-9c1b-4d8a-8a52-3b1f0d6a7c11")
	at := time.Date(2025, 1, 1, 0, 0, 0, 123456000, time.UTC)
	id := event.PublicID(namespace, 7, at)

	t.Run("is a UUIDv5", func(t *testing.T) {
		t.Parallel()
		if id.Version() != 5 || id.Variant() != uuid.RFC4122 {
			t.Fatalf("got version %d, variant %s", id.Version(), id.Variant())
		}
	})
	t.Run("does not depend on the time zone nor on what the database cannot hold", func(t *testing.T) {
		t.Parallel()
		if got := event.PublicID(namespace, 7, at.In(time.FixedZone("", 19800)).Add(999)); got != id {
			t.Fatalf("got %s, want %s", got, id)
		}
	})
	t.Run("differs for another row, time or namespace", rapid.MakeCheck(func(t *rapid.T) {
		otherID := rapid.Int64().Draw(t, "id")
		micros := rapid.Int64Range(-1<<40, 1<<40).Draw(t, "µs")
		other := event.PublicID(namespace, otherID, at.Add(time.Duration(micros)*time.Microsecond))
		if same := otherID == 7 && micros == 0; (other == id) != same {
			t.Fatalf("got %s for both", other)
		}
		if event.PublicID(uuid.NameSpaceDNS, otherID, at) == event.PublicID(namespace, otherID, at) {
			t.Fatal("the namespace makes no difference")
		}
	}))
}

func BenchmarkPublicID(b *testing.B) {
	at := time.Date(2025, 1, 1, 0, 0, 0, 123456000, time.UTC)
	b.ReportAllocs()
	for b.Loop() {
		event.PublicID(uuid.NameSpaceDNS, 1234567, at)
	}
}
