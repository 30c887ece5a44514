# Everything here runs on a fresh machine that has Go and make: a temporary PostgreSQL is found, or
# fetched, when it is needed.

FOR     ?= 20s
MATRIX  ?= 15 18
BENCH   ?= .
PACKAGES = ./...
# The tools have a module of their own, so that embedders do not inherit what they need. Without cgo
# sqlc builds in a quarter of the time.
TOOL     = CGO_ENABLED=0 go tool -modfile=tools/go.mod

.DEFAULT_GOAL := help
.PHONY: help demo test test/race test/matrix bench lint fmt generate generate/check build

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

bench: ## run the benchmarks (BENCH=Latency)
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./bench/...

lint: ## vet, staticcheck, gofumpt
	go vet $(PACKAGES)
	$(TOOL) staticcheck $(PACKAGES)
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
