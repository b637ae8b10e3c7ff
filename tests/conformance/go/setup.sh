#!/usr/bin/env bash
# Fetches the Go client, so that the build needs no network afterwards.
cd "$(dirname "$0")" || exit 1
command -v go >/dev/null 2>&1 || { echo "setup-tests: cannot install the Go client: there is no go" >&2; exit 1; }
go mod download >/dev/null || { echo "setup-tests: cannot install the Go client: go mod download failed; it needs Go 1.20 or later, see https://go.dev/dl" >&2; exit 1; }
