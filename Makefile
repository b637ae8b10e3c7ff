# Forebay's commands. `make help` lists them.
#
# Only Rust has to be there beforehand; `make test` installs the rest (as root, or with sudo).

.DEFAULT_GOAL := help
.PHONY: help demo build test setup lint unit binary sim mutants conformance crash cluster docs bench clean

help: ## this list
	@echo "make TARGET, where TARGET is one of:"
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do printf '  %-14s %s\n' "$$name" "$$what"; done

demo: build ## build and show the broker at work, with a live view and a summary (needs Rust alone)
	@bash -c '. scripts/lib.sh; exec "$$forebay" demo'

build: ## release build of the binary, in target/release/forebay
	@bash -c '. scripts/lib.sh; need_rust; echo "==> building forebay (a few minutes the first time)"; exec cargo build --release --locked -p forebay-cli'

test: ## everything: set-up, lints, unit tests, clients against RabbitMQ, crashes, documents, demo
	@scripts/test.sh

setup: ## install what the tests need (RabbitMQ, client libraries), nothing else
	@scripts/test.sh setup

lint: ## house rules, licences, formatting, clippy
	@scripts/test.sh tidy licences format clippy

unit: ## unit, property, integration and documentation tests; no network, nothing to install
	@scripts/test.sh unit

sim: ## the simulator: SEEDS=N from SEED_BASE=B; or SEED=S, with TRACE=1 or SHRINK=1
	@bash -c '. scripts/lib.sh; need_rust; exec cargo run -q --profile sim --locked -p forebay-sim -- \
	  $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace) $(if $(SHRINK),--shrink),--seeds $(or $(SEEDS),1000) --base $(or $(SEED_BASE),0))'

mutants: ## deliberate faults, one by one: simulator or tests must notice each (ARGS="--only NAME", --list)
	@bash -c '. scripts/lib.sh; need_rust; exec scripts/mutate.py $(ARGS)'

conformance: ## other people's clients on Forebay and on RabbitMQ, compared case by case
	@scripts/test.sh setup build conformance

binary: ## the commands of the binary, as users run them
	@scripts/test.sh binary

crash: ## kill -9 under load: nothing confirmed may be missing
	@scripts/test.sh build crash

cluster: ## the client on every engine, and on a RabbitMQ cluster that is hurt: nothing confirmed may be missing
	@scripts/test.sh setup build cluster

docs: ## links in the documents; commands and programs in README and guide, as written
	@scripts/test.sh setup tidy build docs

bench: ## measure Forebay and RabbitMQ side by side, about 20 minutes; ARGS=--quick tries it out
	@scripts/bench.sh $(ARGS)

clean: ## remove what was built, installed and measured here (target/, .cache/)
	rm -rf target .cache fuzz/target tests/conformance/node/node_modules
