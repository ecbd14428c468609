# Development commands. A recipe is one line; what needs logic is a Go program in tools/.
.DEFAULT_GOAL := help

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LISTEN   ?= 127.0.0.1:6632
TARGET   ?= http://127.0.0.1:6632
MODE     ?= push
ARGS     ?=
BASELINE ?=

MODULES  := ./openapi/... ./broker/... ./sdk-go/... ./conformance/... ./tools/...
GOLANGCI := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help
help: ## show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: bin/posthorn ## build the broker and run it on a managed local PostgreSQL (LISTEN=127.0.0.1:6632)
	bin/posthorn dev --listen $(LISTEN)

.PHONY: build
build: bin/posthorn bin/posthorn-conformance bin/posthorn-bench ## build the programs into bin/

.PHONY: test
test: ## run all tests, the race detector on the broker, and the conformance suite against a fresh broker
	go run ./tools/cmd/verify

.PHONY: conformance
conformance: bin/posthorn-conformance ## run the conformance suite (TARGET=URL ARGS="--capability clock")
	bin/posthorn-conformance run --target $(TARGET) $(ARGS)

.PHONY: bench
bench: bin/posthorn-bench ## measure a broker on this machine (MODE=push|pop|e2e|publish TARGET=URL BASELINE=env ARGS="-batch 100")
	bin/posthorn-bench $(MODE) -url $(TARGET) $(if $(BASELINE),-baseline '$(BASELINE)') $(ARGS)

.PHONY: lint
lint: ## run the linters (golangci-lint, built from source on first use)
	$(GOLANGCI) run $(MODULES)

.PHONY: format
format: ## format the code (gofumpt, gci)
	$(GOLANGCI) fmt $(MODULES)

.PHONY: spec
spec: ## check the API description and bundle it into bin/openapi.json
	go run ./tools/cmd/spec lint && go run ./tools/cmd/spec bundle -o bin/openapi.json

.PHONY: docs
docs: ## generate docs/reference/ and bin/reference.html from the API description
	go run ./tools/cmd/spec docs

.PHONY: generate
generate: docs ## regenerate everything that is generated

.PHONY: clean
clean: ## remove what the commands above made; the data of "make run" stays
	rm -rf bin results

.PHONY: FORCE
bin/posthorn: FORCE
	go build -trimpath -ldflags "-X main.version=$(VERSION)" -o $@ ./broker/cmd/posthorn

bin/posthorn-conformance: FORCE
	go build -trimpath -o $@ ./conformance/cmd/posthorn-conformance

bin/posthorn-bench: FORCE
	go build -trimpath -o $@ ./tools/cmd/bench
