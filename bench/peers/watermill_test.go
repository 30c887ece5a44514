package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// topic is where the events are published.
const topic = "events"

// watermillSettings are what decides the speed of watermill-sql.
type watermillSettings struct {
	pollInterval time.Duration  // 0: the default
	ackDeadline  *time.Duration // nil: the default
	batchSize    int            // 0: the default
	queue        bool           // instead of offsets
	timer        time.Duration  // of the candidate
}

var (
	// watermillDefaults are one look a second, batches of 100 and an acknowledgement deadline of 30 s for each message:
	// https://pkg.go.dev/github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql#SubscriberConfig and #DefaultPostgreSQLSchema.
	watermillDefaults = watermillSettings{timer: time.Second}

	// watermillTuned follows what the same pages say of each setting. PollInterval decides the latency; 1 ms is what the library's
	// own tests use (pkg/sql/pubsub_test.go). Of SubscribeBatchSize they say that a small one "may have a negative impact
	// on performance" and a large one has more delivered again after a crash: 5,000 is what River completes at once.
	// AckDeadline 0 saves a timer for each message, and is safe with a handler that always acknowledges.
	watermillTuned = watermillSettings{
		pollInterval: time.Millisecond,
		ackDeadline:  new(time.Duration),
		batchSize:    5000,
		timer:        time.Millisecond,
	}

	// watermillTunedQueue is the same with rows that are settled one by one, as in a queue, and deleted, without which
	// each look walks over all that are settled:
	// https://pkg.go.dev/github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql#PostgreSQLQueueSchema and
	// #PostgreSQLQueueOffsetsAdapter.
	watermillTunedQueue = watermillSettings{
		pollInterval: time.Millisecond,
		ackDeadline:  new(time.Duration),
		batchSize:    5000,
		queue:        true,
		timer:        time.Millisecond,
	}
)

// watermillSystem receives messages from the subscriber's channel without a Router, which would only add to
// the work.
type watermillSystem struct {
	settings   watermillSettings
	pool       *pgxpool.Pool
	schema     sql.SchemaAdapter
	subscriber *sql.Subscriber
}

func (s watermillSettings) open(ctx context.Context, address string) (system, error) {
	pool, err := newPool(ctx, address, 0)
	if err != nil {
		return nil, err
	}
	system, err := s.initialize(pool)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return system, nil
}

func (s watermillSettings) initialize(pool *pgxpool.Pool) (*watermillSystem, error) {
	schema, offsets := s.adapters()
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		PollInterval:   s.pollInterval,
		AckDeadline:    s.ackDeadline,
		SchemaAdapter:  schema,
		OffsetsAdapter: offsets,
	}, watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))))
	if err != nil {
		return nil, err
	}
	return &watermillSystem{s, pool, schema, subscriber}, subscriber.SubscribeInitialize(topic)
}

func (s watermillSettings) adapters() (sql.SchemaAdapter, sql.OffsetsAdapter) {
	if s.queue {
		return sql.PostgreSQLQueueSchema{SubscribeBatchSize: s.batchSize}, sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true}
	}
	return sql.DefaultPostgreSQLSchema{SubscribeBatchSize: s.batchSize}, sql.DefaultPostgreSQLOffsetsAdapter{}
}

func (s *watermillSystem) close() { s.pool.Close() }

func (s *watermillSystem) publish(ctx context.Context, tx pgx.Tx, data string) error {
	return s.publishMany(ctx, tx, []string{data})
}

// publishMany makes a publisher for the transaction: "you have to create one publisher for each transaction"
// (https://watermill.io/pubsubs/sql).
func (s *watermillSystem) publishMany(ctx context.Context, tx pgx.Tx, data []string) error {
	publisher, err := sql.NewPublisher(sql.TxFromPgx(tx), sql.PublisherConfig{SchemaAdapter: s.schema}, nil)
	if err != nil {
		return err
	}
	messages := make([]*message.Message, len(data))
	for i, d := range data {
		text, err := json.Marshal(d)
		if err != nil {
			return err
		}
		messages[i] = message.NewMessageWithContext(ctx, watermill.NewUUID(), text)
	}
	return publisher.Publish(topic, messages...)
}

func (s *watermillSystem) start(ctx context.Context, handle handler) (stop func() error, err error) {
	messages, err := s.subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		var failed error
		for m := range messages {
			var data string
			if err := json.Unmarshal(m.Payload, &data); err != nil {
				failed = fmt.Errorf("decode: %w", err)
			} else {
				handle(data)
			}
			m.Ack()
		}
		ended <- failed
	}()
	return func() error {
		err := s.subscriber.Close()
		return errors.Join(err, <-ended)
	}, nil
}

func (s *watermillSystem) anyPending() string {
	if s.settings.queue {
		return `SELECT EXISTS (SELECT FROM watermill_events)`
	}
	return `SELECT EXISTS (SELECT FROM watermill_events, watermill_offsets_events
		WHERE (transaction_id, "offset") > (last_processed_transaction_id, offset_acked))`
}
