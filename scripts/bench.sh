#!/usr/bin/env bash
# Measures `forebay serve` on this machine with forebay-load, and RabbitMQ with the same loads if it is installed.
#
#   scripts/bench.sh [SECONDS]     seconds per load, 10 unless given
#
# Brokers run one after the other, each fresh, data under .cache/bench on this disk. Read `generator … cores` in each line:
# near 1 means that the generator was the limit, not the broker. Single runs vary; for a claim, repeat.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$repo"
seconds=${1:-10}
need_rust
cargo build --release --locked -p forebay-cli -p forebay-bench
load=$target_dir/release/forebay-load
dir=.cache/bench
rm -rf "$dir"; mkdir -p "$dir"

# What                                           options of forebay-load
loads="
transient, 100 B, 10 to 10, no confirms         | -p 10 -c 10 -q 10 -s 100
transient, 1 KB, 10 to 10, no confirms          | -p 10 -c 10 -q 10 -s 1000
persistent, 1 KB, 100 publishers x window 100   | -p 100 -c 10 -q 10 -s 1000 --persistent -w 100
persistent, 1 KB, one publisher, window 1       | -p 1 -c 1 -s 1000 --persistent -w 1
persistent, 1 KB, 1000 publishers, no confirms  | -p 1000 -c 100 -q 100 -s 1000 --persistent
"

measure() { # url pid
  while IFS='|' read -r what options <&3; do
    [ -n "${what// /}" ] || continue
    printf '%s\n  ' "$what"
    # shellcheck disable=SC2086
    "$load" --url "$1" --broker-pid "$2" -t "$seconds" $options || echo "  failed"
  done 3<<<"$loads"
}

trap 'kill $(jobs -p) 2>/dev/null || true; [ ! -d "$dir/rabbitmq" ] || scripts/rabbitmq.sh stop "$dir/rabbitmq"' EXIT

echo "==> Forebay, syncing every confirm"
"$forebay" serve --data-dir "$dir/forebay" --amqp 127.0.0.1:0 --http off > "$dir/ready" 2> "$dir/forebay.log" &
pid=$!
until grep -q '^forebay ready' "$dir/ready"; do
  kill -0 $pid 2>/dev/null || { cat "$dir/forebay.log" >&2; die "forebay serve did not start"; }
  sleep 0.05
done
measure "amqp://guest:guest@$(sed -n 's/.*amqp=\([^ ]*\).*/\1/p' "$dir/ready")/%2f" $pid
kill $pid; wait $pid || die "forebay serve did not stop in good order; see $dir/forebay.log"

if [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]; then
  echo "==> RabbitMQ, classic queues, which confirm without syncing"
  url=$(scripts/rabbitmq.sh start "$dir/rabbitmq")
  measure "$url" "$(scripts/rabbitmq.sh pid "$dir/rabbitmq")"
else
  echo "RabbitMQ is not installed here (scripts/setup-tests.sh does it), so there is nothing to compare with"
fi
