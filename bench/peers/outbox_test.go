package peers

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	outbox "github.com/seed-9a365b49/outbox"
)

// aggregates is to how many aggregates the events belong, taking turns.
const aggregates = 1000

// outboxSystem is the product as it comes: its defaults are its best settings.
type outboxSystem struct{ address string }

func openOutbox(ctx context.Context, address string) (system, error) {
	return outboxSystem{address}, outbox.Migrate(ctx, address)
}

func (outboxSystem) close() {}

func outboxMessage(data string) outbox.Message {
	id := uuid.UUID{15: 1} // the nil UUID is refused
	binary.BigEndian.PutUint16(id[:], uint16(number(data)%aggregates))
	return outbox.Message{AggregateType: "order", AggregateID: id, EventType: "OrderPlaced", Data: data}
}

func (outboxSystem) publish(ctx context.Context, tx pgx.Tx, data string) error {
	_, err := outbox.Publish(ctx, tx, outboxMessage(data))
	return err
}

func (outboxSystem) publishMany(ctx context.Context, tx pgx.Tx, data []string) error {
	messages := make([]outbox.Message, len(data))
	for i, d := range data {
		messages[i] = outboxMessage(d)
	}
	_, err := outbox.PublishBatch(ctx, tx, messages)
	return err
}

func (s outboxSystem) start(ctx context.Context, handle handler) (stop func() error, err error) {
	w, err := outbox.NewWorker(outbox.Config{DatabaseURL: s.address})
	if err != nil {
		return nil, err
	}
	err = w.Subscribe(outbox.AnyType, "bench", outbox.HandlerFunc(func(_ context.Context, e *outbox.Event) error {
		var data string
		if err := json.Unmarshal(e.Data, &data); err != nil {
			return fmt.Errorf("decode: %w", err)
		}
		handle(data)
		return nil
	}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() error { cancel(); return <-ended }, nil
}

func (outboxSystem) anyPending() string {
	return "SELECT EXISTS (SELECT FROM events.outbox WHERE published_at IS NULL)"
}
