#!/usr/bin/env bash
# Fetches the Java client and PerfTest and compiles the program; nothing to do when all is newer than its sources.
cd "$(dirname "$0")" || exit 1
repo=$(cd ../../.. && pwd)
for program in java mvn; do
  command -v $program >/dev/null 2>&1 || { echo "setup-tests: cannot install the Java client: there is no $program" >&2; exit 1; }
done
"$repo/scripts/perftest.sh" --fetch-only || exit 1
built=$repo/.cache/java/.built
if [ -e "$built" ] && [ -z "$(find pom.xml src -newer "$built" -print -quit)" ]; then exit 0; fi
build() { nice mvn -q -B "$@" -f pom.xml -DcacheDirectory="$repo/.cache" compile; }
# Without the network first: it is quicker, and works when all was fetched once.
build -o >/dev/null 2>&1 || build >&2 || { echo "setup-tests: cannot install the Java client: Maven failed" >&2; exit 1; }
touch "$built"
