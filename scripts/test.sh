#!/usr/bin/env bash
# Runs the steps of the test suite, one after another, and counts.
#
#   scripts/test.sh                 all of them, in the order of the list below: what `make test` does
#   scripts/test.sh unit docs       only these
#
# A step that fails does not stop the others, so one run shows everything that is wrong. A step that cannot
# run has failed: nothing is skipped. `setup` mostly waits for servers far away, so with all of them it begins first,
# beside those that need nothing of it, and is waited for at its place; builds with optimisation go on meanwhile, too.
# The last line is `N passed, N failed`, and the exit code is 0 only if nothing failed. What each step printed is kept in
# .cache/test/.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
cd "$repo"

# The seconds end what hangs; where something is built they leave room for a machine four times slower than ours.
# name         seconds  what it does
all_steps="
tidy              60    house rules: paths, lengths, arrows between crates, links in documents; no stale mutant
licences         120    licences of all dependencies against deny.toml
format            60    cargo fmt --check
clippy          1800    cargo clippy, all targets, and cargo doc; warnings are errors
setup            900    install what the tests need: RabbitMQ 3.10, clients in Python, Go, Node and Java
unit            1800    unit, property and integration tests, and the examples in the documentation
binary          1800    the binary's commands, as users run them, rightly and wrongly
sim             1200    the simulator: fixed seeds and those of this content, a minute of each at the same time
build           1800    release build of the binary
conformance     1800    other people's clients, on Forebay and on RabbitMQ, case by case
crash           1800    kill -9 under load, again and again, and peers that misbehave: nothing confirmed may be missing
cluster         1800    the client on every engine, from one to another, and on a RabbitMQ cluster of three that is hurt: nothing confirmed may be missing
docs             300    the commands and programs in README and guide, as written; the report of bench in Chromium
demo              60    forebay demo for 5 seconds into a pipe
"

run_setup() { scripts/setup-tests.sh; }
run_tidy() { scripts/tidy.py && scripts/mutate.py --stale; }
run_licences() { python3 -m doctest scripts/licences.py && scripts/licences.py; }
run_format() { component rustfmt && cargo fmt --check; }
run_clippy() {
  component clippy &&
    cargo clippy --workspace --all-targets --features forebay-bench/lapin,forebay/opentelemetry --locked -- -D warnings &&
    cargo clippy --workspace --no-default-features --locked -- -D warnings && # and without spans
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}
# Cargo chooses the features of what we depend on for all packages that a command names. So every command here names
# the whole workspace and then the tests that it wants: otherwise half of it would be built again for each step.
cargo_test() { cargo test --workspace --features forebay/opentelemetry --locked --no-fail-fast "$@"; }
run_examples() { cargo_test --doc; }
# The binary's own tests are whole processes, in steps of their own; no other crate's tests have their names.
run_unit() {
  local test tests=() code=0
  for test in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
    [[ $test == crates/forebay-cli/* ]] || tests+=(--test "$(basename "${test%/main.rs}" .rs)")
  done
  cargo_test --lib --bins "${tests[@]}" --no-run || return
  # Tests wait for clocks, and half of two cores idles: meanwhile the examples in the documentation are built.
  nice scripts/test.sh --run examples >.cache/test/examples.log 2>&1 &
  cargo_test --lib --bins "${tests[@]}" || code=1
  wait $! || code=1
  cat .cache/test/examples.log
  return $code
}
# Those that ask much of the machine run the release build, below.
loaded="crash backlog demo not_starting stopping"
run_binary() {
  local test tests=()
  for test in crates/forebay-cli/tests/*.rs; do
    test=$(basename "$test" .rs)
    [[ " $loaded " == *" $test "* ]] || tests+=(--test "$test")
  done
  cargo_test "${tests[@]}"
}
# Fixed seeds, so that a change is compared with the same runs as before; those of this content, so that each finds more. Each is
# one thread.
run_sim() {
  cargo build --profile sim --locked -p forebay-sim || return
  local sim=$target_dir/sim/forebay-sim fixed code=0
  "$sim" --seeds 3000 --base 0 --seconds 60 & fixed=$!
  "$sim" --seeds 4000 --base "$FOREBAY_SEED" --seconds 60 || code=1
  wait $fixed || code=1
  return $code
}
run_build() { cargo build --release --locked -p forebay-cli; }
# What later steps build, with what earlier ones leave of the processors: they wait for servers far away, and for clocks.
# What fails here fails there, too.
run_ahead() { cargo build --release --locked -p forebay-cli; cargo build --profile sim --locked -p forebay-sim; }
run_conformance() { have_forebay && tests/conformance/run.py --broker both --forebay "$forebay"; }
run_crash() {
  local test tests=()
  for test in $loaded; do tests+=(--test "$test"); done
  have_forebay && FOREBAY_BINARY=$(realpath "$forebay") cargo_test "${tests[@]}"
}
run_cluster() {
  have_forebay && cargo build --workspace --features forebay/opentelemetry --locked --bin forebay-engines &&
    tests/engines/run.py --forebay "$forebay" --engines "$target_dir/debug/forebay-engines"
}
run_docs() { have_forebay && .cache/venv/bin/python tests/docs/run.py --forebay "$forebay"; }
run_demo() { have_forebay && "$forebay" demo --seconds 5 | cat; }

# Clippy and rustfmt are missing from a minimal Rust installation.
component() { cargo "${1/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$1"; }
have_forebay() { [ -x "$forebay" ] || { echo "there is no release binary; run 'make build' first"; return 1; }; }

# Reads a step's output; says "PASSED FAILED". Steps that do not count their tests are one test.
count() { # name exit-code log
  case $1 in
    unit | binary | crash) awk -F'[ ;]+' '/^test result: /{p += $4; f += $6} END{print p + 0, f + 0}' "$3" ;;
    conformance | cluster | docs)
      sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$3" | tail -1 | grep . || echo 0 0 ;;
    *) [ "$2" = 0 ] && echo 1 0 || echo 0 1 ;;
  esac
}

passed=0 failed=0 report="" failures="" beside="" ahead=""
# In a process of its own: a process group, so that what hangs can be ended with all that it started.
bounded() { exec timeout --kill-after=10 "$2" scripts/test.sh --run "$1" 2>&1; }
step() { # name seconds what
  local name=$1 limit_s=$2 what=$3 code p f log=.cache/test/$1.log began=$SECONDS
  printf '\n==> %s: %s\n' "$name" "$what"
  if [ "$name" = build ] && [ -n "$ahead" ]; then
    wait "$ahead" || true
    ahead=""
  fi
  if [ "$name" = setup ] && [ -n "$beside" ]; then
    wait "$beside"
    code=$? beside=""
    cat "$log"
  else
    bounded "$name" "$limit_s" | tee "$log" | sed -uE "s/^([0-9]+ passed, [0-9]+ failed)$/$name: \1/"
    code=${PIPESTATUS[0]}
  fi
  read -r p f <<<"$(count "$name" "$code" "$log")"
  if [ "$code" = 124 ] || [ "$code" = 137 ]; then
    echo "$name was not done after $limit_s s and was ended"
  fi
  # An exit code counts even when every single test says it passed, and so does a suite without tests.
  if [ "$f" = 0 ] && { [ "$code" != 0 ] || [ "$p" = 0 ]; }; then f=1; fi
  passed=$((passed + p)) failed=$((failed + f))
  local word=ok; [ "$f" = 0 ] || word=FAIL
  report+=$(printf '%-4s %-12s %5d passed %3d failed %5d s' "$word" "$name" "$p" "$f" $((SECONDS - began)))$'\n'
  [ "$f" = 0 ] && return
  report+="     see .cache/test/$name.log"$'\n'
  failures+=$(printf '\n==> %s failed; the last lines of .cache/test/%s.log, and what is said of failures in it:\n' "$name" "$name"
    { grep -nE 'FAILED|^FAIL|panicked|^error|^seed [0-9]+ after|failed:|Traceback' "$log" | head -40; echo ...; tail -20 "$log"; } |
      cut -c1-400 | sed 's/^/  /')$'\n'
}

# What is left to chance is drawn by the content that is committed: other content tries something else, and the same content the
# same again, here and elsewhere. Without git the clock draws.
drawn() {
  local tree
  if tree=$(git rev-parse --quiet --verify 'HEAD^{tree}' 2>/dev/null); then echo $((16#${tree:0:12})); else date +%s0000; fi
}
export FOREBAY_SEED=${FOREBAY_SEED:-$(drawn)}
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$FOREBAY_SEED}

if [ "${1:-}" = --run ]; then "run_$2"; exit; fi

need_rust
mkdir -p .cache/test
wanted=" $* "
for name in "$@"; do
  grep -q "^$name " <<<"$all_steps" || die "there is no step $name; the steps are: $(awk 'NF{printf "%s ", $1}' <<<"$all_steps")"
done
if [ $# = 0 ]; then
  free_gb=$(df --output=avail -B 1G . | tail -1)
  [ -d "$target_dir" ] || [ "$free_gb" -ge 6 ] ||
    echo "of the disk $free_gb GB are free, and a first run needs about 5: if it fails for want of space, make room" >&2
  # All of it is one build, with nothing edited in between: what Rust keeps for the next edit would be gigabytes for nobody.
  export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
  bounded setup "$(awk '$1 == "setup" { print $2 }' <<<"$all_steps")" >.cache/test/setup.log &
  beside=$!
  timeout --kill-after=10 1800 nice -n 19 scripts/test.sh --run ahead >.cache/test/ahead.log 2>&1 &
  ahead=$!
  trap 'kill $beside $ahead 2>/dev/null || true' EXIT
fi
while read -r name limit_s what <&3; do
  [ -n "$name" ] || continue
  [ $# = 0 ] || [[ $wanted == *" $name "* ]] || continue
  step "$name" "$limit_s" "$what"
done 3<<<"$all_steps"

# Of a run elsewhere often only the end is kept: what failed is said once more there.
[ -z "$failures" ] || printf '%s\n' "$failures"
printf '\n%s\n' "$report"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
