package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox"
	"github.com/seed-9a365b49/outbox/metrics"
)

const (
	// readyTimeout bounds the question whether the database is there: shorter than a probe's patience.
	readyTimeout = 2 * time.Second
	// requestTimeout bounds the reading of a request.
	requestTimeout = 5 * time.Second
	// endpointsGrace is how long requests may go on when the worker has ended.
	endpointsGrace = time.Second
)

// adminAddress is where --admin-addr listens: host:port. Without a host it is the loopback, so that nobody else is let in by a slip.
type adminAddress string

func (a *adminAddress) String() string { return string(*a) }
func (a *adminAddress) Type() string   { return "host:port" }

func (a *adminAddress) Set(s string) error {
	if s == "" {
		*a = ""
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%s is not an address, such as :9090 (this machine only) or 0.0.0.0:9090", quoteValue(s))
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return fmt.Errorf("%s has no port, such as :9090", quoteValue(s))
	}
	if host == "" {
		host = "127.0.0.1"
	}
	*a = adminAddress(net.JoinHostPort(host, port))
	return nil
}

// endpoints serve /metrics, /livez and /readyz. A nil one serves nothing.
type endpoints struct {
	server   *http.Server
	listener net.Listener
	ended    chan struct{}
}

// serveEndpoints begins to serve.
func serveEndpoints(ctx context.Context, address adminAddress, worker *outbox.Worker, m *metrics.Metrics, log zerolog.Logger) (*endpoints, error) {
	if address == "" {
		return nil, nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", string(address))
	if err != nil {
		return nil, fmt.Errorf("--admin-addr: %w", err)
	}
	e := &endpoints{
		server:   &http.Server{Handler: handleEndpoints(worker, m), ReadTimeout: requestTimeout, IdleTimeout: time.Minute},
		listener: listener,
		ended:    make(chan struct{}),
	}
	go func() {
		defer close(e.ended)
		if err := e.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error().Err(err).Msg("admin_failed")
		}
	}()
	log.Info().Stringer("address", listener.Addr()).Msg("admin_listening")
	return e, nil
}

func (e *endpoints) close() {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endpointsGrace)
	defer cancel()
	if e.server.Shutdown(ctx) != nil {
		_ = e.server.Close() // nothing is lost by a request that is cut off
	}
	<-e.ended
}

func handleEndpoints(worker *outbox.Worker, m *metrics.Metrics) http.Handler {
	registry := prometheus.NewRegistry()
	build := prometheus.GaugeOpts{Name: "outbox_build_info", Help: "1; its label has the version.", ConstLabels: prometheus.Labels{"version": buildVersion()}}
	registry.MustRegister(m, prometheus.NewGaugeFunc(build, func() float64 { return 1 }), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		state := readiness(worker.Health(), worker.Check(ctx))
		code := http.StatusOK
		if state.Status != ready {
			code = http.StatusServiceUnavailable
		}
		answer(w, code, state)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, map[string]string{"error": "there are GET /metrics, /livez and /readyz"})
	})
	return mux
}

const (
	ready    = "ready"
	notReady = "not ready"
)

// readinessState is the body of /readyz.
type readinessState struct {
	Status    string `json:"status"`
	Role      string `json:"role,omitempty"` // owner or standby
	Degraded  bool   `json:"degraded"`       // works, and not as it should: see Reason
	Reason    string `json:"reason,omitempty"`
	InFlight  int    `json:"in_flight"`
	Unsettled int    `json:"unsettled"`
}

// readiness says whether a worker does its job, as the owner or a standby. One that is degraded does.
func readiness(h outbox.Health, err error) readinessState {
	s := readinessState{Status: ready, Role: "standby", Degraded: h.Degraded, Reason: h.Reason, InFlight: h.InFlight, Unsettled: h.Unsettled}
	if h.Owner {
		s.Role = "owner"
	}
	switch {
	case err == nil:
		if !h.Degraded {
			s.Reason = ""
		}
	case errors.Is(err, outbox.ErrNewerSchema): // a deployment is on its way, and this worker works
		s.Degraded, s.Reason = true, err.Error()
	default:
		s.Status, s.Role, s.Reason = notReady, "", loggedError(err)
	}
	return s
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // whoever asked has gone
}
