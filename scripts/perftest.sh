#!/usr/bin/env bash
# Runs RabbitMQ PerfTest (version in tests/conformance/java/perftest/pom.xml) with the given arguments; fetches it the first time.
#   scripts/perftest.sh --uri amqp://127.0.0.1:5672 --time 10 --confirm 100
#   scripts/perftest.sh --help
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
pom=$repo/tests/conformance/java/perftest/pom.xml
lib=$repo/.cache/perftest
need() { command -v "$1" >/dev/null || { echo "perftest.sh: there is no $1 here" >&2; exit 2; }; }
need java
if ! cmp -s "$pom" "$lib/pom.xml"; then
  need mvn
  rm -rf "$lib"; mkdir -p "$lib"
  mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$lib" >&2 \
    || { echo "perftest.sh: Maven could not fetch PerfTest" >&2; exit 2; }
  cp "$pom" "$lib/pom.xml"
fi
[ "${1:-}" = --fetch-only ] && exit 0
# JAVA_TOOL_OPTIONS adds flags of the Java machine.
exec java -cp "$lib/*" com.rabbitmq.perf.PerfTest "$@"
