# Everything here runs on a fresh machine that has Go and make: a temporary PostgreSQL is found, or
# fetched, when it is needed.

FOR     ?= 20s
MATRIX  ?= 15 18
STRESS  ?= 5m
BENCH   ?= .
COUNT   ?= 1
ROUNDS  ?= 3
PACKAGES = ./...
# The tools have a module of their own, so that embedders do not inherit what they need. Without cgo
# sqlc builds in a quarter of the time.
TOOL     = CGO_ENABLED=0 go tool -modfile=tools/go.mod

.DEFAULT_GOAL := help
.PHONY: help demo test test/race test/matrix test/peers test/deploy stress bench bench/report bench/peers lint fmt generate generate/check build

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z\/]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## watch events travel from a transaction to a handler (FOR=20s)
	@go run ./cmd/outbox demo --for $(FOR)

test: ## run all tests on a temporary PostgreSQL
	go test -timeout 10m $(PACKAGES)

test/race: ## run all tests with the race detector
	go test -race -timeout 12m $(PACKAGES)

test/matrix: ## run all tests on several versions of PostgreSQL (MATRIX="15 18")
	@for version in $(MATRIX); do \
		echo "== PostgreSQL $$version"; \
		OUTBOX_PG_VERSION=$$version go test -count=1 -timeout 10m $(PACKAGES) || exit 1; \
	done

test/peers: ## check that the libraries that are measured beside it still work
	cd bench/peers && go test -timeout 5m ./...

test/deploy: ## check the alerts, the dashboard and the manifests in deploy/, in a module of its own
	cd deploy/check && go test -count=1 -timeout 5m ./... # what it checks lies outside its module, where Go sees no change

stress: ## look for lost wake-ups, for minutes (STRESS=5m)
	go test ./poller -run TestGateStress -v -timeout 0 -args -stress $(STRESS)

bench: ## measure, in lines for benchstat; about 10 minutes (BENCH=Latency COUNT=10)
	go test -run '^$$' -bench '$(BENCH)' -benchtime 1x -count $(COUNT) -timeout 0 ./bench

bench/report: ## measure, and write bench/RESULTS.md with its charts
	OUTBOX_BENCH_REPORT=. OUTBOX_BENCH_COMMAND='make bench/report$(if $(filter-out .,$(BENCH)), BENCH=$(BENCH))' \
		go test -run '^$$' -bench '$(BENCH)' -benchtime 1x -timeout 0 ./bench

bench/peers: ## measure other libraries beside it, in a module of its own (BENCH=Latency ROUNDS=3)
	cd bench/peers && go test -run '^$$' -bench '$(BENCH)' -timeout 0 . -args -rounds=$(ROUNDS)

lint: ## vet, staticcheck, gofumpt
	go vet $(PACKAGES)
	$(TOOL) staticcheck $(PACKAGES)
	cd bench/peers && go vet ./... && CGO_ENABLED=0 go tool -modfile=../../tools/go.mod staticcheck ./...
	cd deploy/check && go vet ./... && CGO_ENABLED=0 go tool -modfile=../../tools/go.mod staticcheck ./...
	@unformatted=$$($(TOOL) gofumpt -l .); \
	if [ -n "$$unformatted" ]; then echo "gofumpt would change:"; echo "$$unformatted"; exit 1; fi

fmt: ## format the code
	$(TOOL) gofumpt -w .

generate: ## generate db/eventsdb from db/queries and migrations
	$(TOOL) sqlc generate

generate/check: ## fail if the generated code is not up to date
	$(TOOL) sqlc diff

build: ## build bin/outbox
	CGO_ENABLED=0 go build -trimpath -o bin/outbox ./cmd/outbox
