#!/usr/bin/env bash
# Builds Forebay and its load generator, then measures Forebay and RabbitMQ side by side: bench/compare.py, whose options it takes.
#   scripts/bench.sh --quick
# How, and what came out: docs/benchmarks.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$repo"
need_rust
command -v python3 >/dev/null || die "there is no python3 here"
cargo build --release --locked -p forebay-cli -p forebay-bench
exec python3 bench/compare.py "$@"
