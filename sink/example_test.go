package sink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/seed-9a365b49/outbox/event"
	"github.com/seed-9a365b49/outbox/sink"
)

var paymentSucceeded = &event.Event{
	ID:            42,
	PublicID:      uuid.MustParse("6f1e0d5c-3b7a-5c2e-9d4f-0a1b2c3d4e5f"),
	AggregateType: "subscription",
	AggregateID:   uuid.MustParse("018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091"),
	Type:          "PaymentSucceeded",
	OccurredAt:    time.Date(2025, 3, 9, 14, 59, 58, 120_000_000, time.UTC),
	Version:       1,
	Data:          json.RawMessage(`{"amount": 4200}`),
}

func ExampleNewStdout() {
	stdout, err := sink.NewStdout(os.Stdout, "/outbox/billing")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := stdout.Handle(context.Background(), paymentSucceeded); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"specversion":"1.0","id":"6f1e0d5c-3b7a-5c2e-9d4f-0a1b2c3d4e5f","source":"/outbox/billing","type":"PaymentSucceeded","subject":"018f6b1e-7c5d-7e2a-8a3b-4c5d6e7f8091","time":"2025-03-09T14:59:58.120000Z","datacontenttype":"application/json","outboxid":"42","aggregatetype":"subscription","eventversion":1,"data":{"amount": 4200}}
}

// A receiver checks the signature over the bytes that arrived, before it reads them, and
// answers 2xx once it has stored the event.
func ExampleNewWebhook() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verifier, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			http.Error(w, "misconfigured", http.StatusInternalServerError)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
		if err != nil {
			http.Error(w, "body not read", http.StatusBadRequest)
			return
		}
		if verifier.Verify(body, r.Header) != nil {
			http.Error(w, "wrong signature", http.StatusUnauthorized)
			return
		}
		var e struct {
			Type string
			Data json.RawMessage
		}
		if json.Unmarshal(body, &e) != nil {
			http.Error(w, "not JSON", http.StatusBadRequest)
			return
		}
		fmt.Printf("%s %s\n", e.Type, e.Data)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer receiver.Close()

	webhook, err := sink.NewWebhook(sink.WebhookConfig{
		URL:     receiver.URL,
		Source:  "/outbox/billing",
		Secrets: []string{secret},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer webhook.CloseIdleConnections()
	if err := webhook.Handle(context.Background(), paymentSucceeded); err != nil {
		fmt.Println(err)
	}
	// Output:
	// PaymentSucceeded {"amount": 4200}
}
