#!/usr/bin/env bash
# Installs the Node client from the lock file; nothing to do when it is there already.
cd "$(dirname "$0")" || exit 1
command -v npm >/dev/null 2>&1 || { echo "setup-tests: cannot install the Node client: there is no npm" >&2; exit 1; }
cmp -s package-lock.json node_modules/.installed-lock.json && exit 0
npm ci --no-audit --no-fund --loglevel=error >/dev/null || { echo "setup-tests: cannot install the Node client: npm ci failed" >&2; exit 1; }
cp package-lock.json node_modules/.installed-lock.json
