#!/usr/bin/env bash
# Installs what the tests against other people's clients and brokers need. Safe to run again: what is there is not touched.
# Versions are pinned. What cannot be installed is said in one sentence, and the exit code is then 1.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache
missing=0
cannot() { echo "setup-tests: cannot install $1: $2" >&2; missing=1; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- What only the system's package manager can give: RabbitMQ 3.10.8, the reference broker, and the languages of the clients. Each
# that is here already, from wherever, is taken as it is.
packages=()
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || packages+=(rabbitmq-server)
have ip || packages+=(iproute2)
have python3 && python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3 python3-venv)
have npm || packages+=(nodejs npm)
have go || packages+=(golang-go)
have javac || packages+=(default-jdk-headless)
have mvn || packages+=(maven)
have chromium || have google-chrome || packages+=(chromium fonts-dejavu-core) # opens the report of `forebay bench`
if [ ${#packages[@]} -gt 0 ]; then
  as_root=""; [ "$(id -u)" = 0 ] || as_root=sudo
  if have apt-get; then
    echo "setup-tests: apt-get install ${packages[*]}"
    $as_root apt-get update -qq >/dev/null 2>&1
    # RUNLEVEL=1 makes the packaging tools think of single-user mode, in which services are not started.
    if ! $as_root env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >.cache/apt.log 2>&1; then
      cannot "${packages[*]}" "apt-get failed, see .cache/apt.log"
    fi
    # RabbitMQ's own service is neither needed nor wanted.
    [[ ${packages[0]} == rabbitmq-server ]] && have systemctl && $as_root systemctl disable --now rabbitmq-server epmd.socket >/dev/null 2>&1
  else
    cannot "${packages[*]}" "there is no apt-get here; install them yourself"
  fi
fi

# --- Python clients, in a virtual environment of their own.
if have python3; then
  [ -x .cache/venv/bin/python ] || python3 -m venv .cache/venv || cannot "the Python environment" "python3 -m venv failed"
  wanted=tests/conformance/python/requirements.txt
  if [ -x .cache/venv/bin/pip ] && ! cmp -s $wanted .cache/venv/installed.txt; then
    if .cache/venv/bin/pip install -q --disable-pip-version-check -r $wanted >.cache/pip.log 2>&1; then
      cp $wanted .cache/venv/installed.txt
    else
      cannot "the Python clients (pika, aio-pika, kombu)" "pip failed, see .cache/pip.log"
    fi
  fi
else
  cannot "the Python clients" "there is no python3"
fi

# --- Go, Node and Java clients: each directory brings its own setup part.
for part in tests/conformance/*/setup.sh; do
  [ -e "$part" ] || continue
  bash "$part" || missing=1
done

[ $missing = 0 ] && echo "setup-tests: everything is in place"
exit $missing
