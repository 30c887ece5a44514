package demo

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

// The types of events, in the order in which a purchase goes through them. The ones marked "by a
// handler" are published by reactions.go and have an earlier event as their cause.
const (
	orderPlaced       = "OrderPlaced"
	paymentRequested  = "PaymentRequested" // by a handler of OrderPlaced
	paymentAuthorized = "PaymentAuthorized"
	paymentCaptured   = "PaymentCaptured"
	shipmentRequested = "ShipmentRequested" // by a handler of PaymentCaptured
	shipmentPickedUp  = "ShipmentPickedUp"
	shipmentArrived   = "ShipmentArrived"
	orderCompleted    = "OrderCompleted" // by a handler of ShipmentArrived
)

// byServices is the share of a purchase's events that no handler publishes.
const byServices = 5.0 / 8

// What happens when, counted in events that the services publish.
const (
	deadLetterAt = 10 // the next authorization from then on can never succeed; the demo has one dead letter
	troubleFrom  = 6  // the first event whose handler fails for a while
	burstFrom    = 40
	abandonFrom  = 12 // the next new order from then on is rolled back
)

// How often the same happens again, in seconds at the rate asked for.
const (
	troubleEvery = 1.2
	burstEvery   = 6.5
	abandonEvery = 2
)

// reasons is why the handlers of some types fail.
var reasons = map[string]string{
	orderPlaced:       "the fraud check timed out",
	paymentAuthorized: "the accounting service answered 503",
	shipmentPickedUp:  "the mail server refused the connection",
}

const deadReason = "accounting has no account for this currency"

// story is one aggregate of the shop: an order, a payment or a shipment, and what its service will do next.
type story struct {
	kind        string
	id          uuid.UUID
	purchase    purchase
	correlation string
	next        []string // types of the events that its service has still to publish
}

// purchase is what the events of one purchase have in common.
type purchase struct {
	Order  uuid.UUID `json:"order"`
	Amount int       `json:"amount_cents"`
	// Trouble makes the handler fail, so that there is something to see.
	Trouble *trouble `json:"trouble,omitempty"`
}

// trouble is what goes wrong with one event.
type trouble struct {
	Attempts int    `json:"attempts"` // that fail
	Reason   string `json:"reason"`
}

func (s story) payment() story {
	return s.follower("payment", paymentAuthorized, paymentCaptured)
}

func (s story) shipment() story {
	return s.follower("shipment", shipmentPickedUp, shipmentArrived)
}

// follower is a new aggregate of the same purchase.
func (s story) follower(kind string, next ...string) story {
	s.kind, s.id, s.next = kind, uuid.New(), next
	return s
}

// scene is one transaction of a service.
type scene struct {
	stories []story // each publishes the first event of its next
	trouble *trouble
	abandon bool // roll back
}

// stories is what goes on in the shop. It decides what happens next.
type stories struct {
	attempts int     // that make an event a dead letter
	rate     float64 // of events of services, a second

	mu          sync.Mutex
	rand        *rand.Rand
	open        []story
	events      int  // published by services so far
	burst       int  // orders in a burst
	troubles    int  // how many events have been given one
	deadLetter  bool // the dead letter is on its way
	nextTrouble int
	nextBurst   int
	nextAbandon int
}

// newStories returns an empty shop for a rate of events a second.
func newStories(rate float64, attempts int, seed uint64) *stories {
	return &stories{
		attempts: attempts, rate: rate * byServices, rand: rand.New(rand.NewPCG(seed, 0)),
		burst:       min(max(5, int(rate)), 100),
		nextTrouble: troubleFrom, nextBurst: burstFrom, nextAbandon: abandonFrom,
	}
}

// scene returns what happens next, at most limit events. calm means that nothing new may go wrong, because the end is
// near. The stories in it are the caller's until it gives them back with resume.
func (s *stories) scene(limit int, calm bool) scene {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next scene
	switch {
	case s.events >= s.nextBurst && limit >= s.burst:
		s.nextBurst = s.after(burstEvery)
		for range s.burst {
			next.stories = append(next.stories, s.order())
		}
	case s.rand.Float64() < s.newcomers():
		next.stories = append(next.stories, s.order())
		if s.events >= s.nextAbandon {
			s.nextAbandon = s.after(abandonEvery)
			next.abandon = true
			return next
		}
	default:
		next.stories = append(next.stories, s.take())
	}
	s.events += len(next.stories)
	if len(next.stories) == 1 {
		next.trouble = s.goesWrong(next.stories[0].next[0], calm)
	}
	return next
}

// newcomers is the probability that what happens next is a new order. At one in five events, orders come and go evenly.
func (s *stories) newcomers() float64 {
	switch open := len(s.open); {
	case open == 0:
		return 1
	case open < 6:
		return 0.4
	case open < 15:
		return 0.2
	default:
		return 0.05
	}
}

func (s *stories) order() story {
	order := uuid.New()
	return story{
		kind: "order", id: order, next: []string{orderPlaced},
		purchase:    purchase{Order: order, Amount: 100 * (5 + s.rand.IntN(300))},
		correlation: fmt.Sprintf("checkout-%08x", s.rand.Uint32()),
	}
}

// take removes one of the open stories.
func (s *stories) take() story {
	i, last := s.rand.IntN(len(s.open)), len(s.open)-1
	taken := s.open[i]
	s.open[i] = s.open[last]
	s.open = s.open[:last]
	return taken
}

// goesWrong decides whether the handler of an event will fail, and how often.
func (s *stories) goesWrong(eventType string, calm bool) *trouble {
	switch {
	case eventType == paymentAuthorized && s.events >= deadLetterAt && !s.deadLetter:
		s.deadLetter = true
		return &trouble{Attempts: s.attempts, Reason: deadReason}
	case calm || s.events < s.nextTrouble || reasons[eventType] == "" || s.attempts == 1:
		return nil
	}
	s.nextTrouble = s.after(troubleEvery)
	s.troubles++
	trouble := &trouble{Attempts: 1, Reason: reasons[eventType]}
	if s.troubles%3 == 0 {
		trouble.Attempts = s.attempts - 1
	}
	return trouble
}

// resume takes a story that has something left to publish.
func (s *stories) resume(st story) {
	if len(st.next) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, st)
}

// count returns how many events the services have published.
func (s *stories) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// after is the number of the event that comes in some seconds.
func (s *stories) after(seconds float64) int {
	return s.events + max(1, int(seconds*s.rate))
}

// pause returns how long to wait after a transaction, so that the events of services and handlers together come at
// about the rate.
func (s *stories) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(float64(time.Second) / s.rate * (0.5 + s.rand.Float64()))
}
