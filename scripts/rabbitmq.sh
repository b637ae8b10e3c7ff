#!/usr/bin/env bash
# A RabbitMQ of our own to compare with: loopback only, own node name, own data directory, own epmd, free ports.
#
#   scripts/rabbitmq.sh start DIR [PORT]   starts (or starts again with the same data); prints the AMQP URI when it accepts clients
#   scripts/rabbitmq.sh stop DIR           orderly stop (SIGTERM), data kept
#   scripts/rabbitmq.sh kill DIR           SIGKILL, data kept
#   scripts/rabbitmq.sh ctl DIR ARG...     rabbitmqctl against it
#   scripts/rabbitmq.sh pid DIR            process id of the Erlang VM
#
# DIR holds everything: ports, cookie, data, log. Extra lines for rabbitmq.conf come from the file named by RABBITMQ_EXTRA_CONF,
# definitions (users, vhosts) from the file named by RABBITMQ_DEFINITIONS, arguments of the Erlang VM from RABBITMQ_EXTRA_ERL_ARGS, more
# plugins (with commas between them) from RABBITMQ_EXTRA_PLUGINS. Delete DIR after `stop` to forget it.
set -euo pipefail

die() { echo "rabbitmq.sh: $*" >&2; exit 1; }
[ $# -ge 2 ] || die "usage: rabbitmq.sh start|stop|kill|ctl|pid DIR [...]"
command=$1; mkdir -p "$2"; dir=$(cd "$2" && pwd); shift 2

# The distribution's own wrapper insists on a system user and system directories; the scripts behind it do not.
bin=/usr/lib/rabbitmq/bin
[ -x $bin/rabbitmq-server ] || die "RabbitMQ is not installed (scripts/setup-tests.sh does it)"

if [ ! -f "$dir/ports" ]; then
  [ "$command" = start ] || die "nothing was started in $dir"
  python3 - "${1:-0}" > "$dir/ports" <<'PY'
import random, socket, sys
# Below those that the system gives to outgoing connections: one of these might be taken before RabbitMQ listens.
first = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
held = []
while len(held) < 3:  # held together, so that the three differ
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", random.randrange(first // 2, first))); held.append(s)
    except OSError:  # taken, or not ours to take
        s.close()
amqp, dist, epmd = (s.getsockname()[1] for s in held)
print(f"amqp_port={int(sys.argv[1]) or amqp}\ndist_port={dist}\nepmd_port={epmd}")
PY
fi
. "$dir/ports"

export HOME=$dir ERL_EPMD_PORT=$epmd_port ERL_EPMD_ADDRESS=127.0.0.1
export RABBITMQ_NODENAME="conformance$amqp_port@localhost" RABBITMQ_NODE_PORT=$amqp_port RABBITMQ_NODE_IP_ADDRESS=127.0.0.1
export RABBITMQ_DIST_PORT=$dist_port RABBITMQ_MNESIA_BASE=$dir/data RABBITMQ_LOG_BASE=$dir/log RABBITMQ_PID_FILE=$dir/pid
export RABBITMQ_CONFIG_FILE=$dir/rabbitmq RABBITMQ_ENABLED_PLUGINS_FILE=$dir/enabled_plugins RABBITMQ_CONF_ENV_FILE=$dir/no-env
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} ${RABBITMQ_EXTRA_ERL_ARGS:-}"
# An Erlang that is killed while it starts leaves its dump here, too.
export ERL_CRASH_DUMP=$dir/erl_crash.dump
# Otherwise schedulers spin on the cores that the clients need.
export RABBITMQ_SCHEDULER_BIND_TYPE=u

alive() { [ -s "$dir/pid" ] && kill -0 "$(cat "$dir/pid")" 2>/dev/null; }
gone() { # waits until the process is gone
  local pid=$1 i
  for i in $(seq 300); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
  return 1
}
stop_epmd() { epmd -port "$epmd_port" -kill >/dev/null 2>&1 || true; }

case $command in
start)
  alive && die "already running in $dir"
  rm -f "$dir/pid"
  echo "[rabbitmq_consistent_hash_exchange${RABBITMQ_EXTRA_PLUGINS:+,$RABBITMQ_EXTRA_PLUGINS}]." > "$dir/enabled_plugins"
  {
    echo "listeners.tcp.default = 127.0.0.1:$amqp_port"
    echo "log.file.level = info"
    [ -z "${RABBITMQ_DEFINITIONS:-}" ] || echo "load_definitions = $RABBITMQ_DEFINITIONS"
    [ -z "${RABBITMQ_EXTRA_CONF:-}" ] || cat "$RABBITMQ_EXTRA_CONF"
  } > "$dir/rabbitmq.conf"
  # Erlang starts it, too, and does not wait long for it: on a busy machine it then says `nodistribution` and ends.
  epmd -port "$epmd_port" -daemon
  for i in $(seq 100); do epmd -port "$epmd_port" -names >/dev/null 2>&1 && break; sleep 0.1; done
  setsid $bin/rabbitmq-server > "$dir/stdout" 2>&1 < /dev/null &
  launcher=$!
  # Listeners come last in its start, so an open port means that it is ready.
  for i in $(seq 600); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$amqp_port") 2>/dev/null && alive; then
      echo "amqp://guest:guest@127.0.0.1:$amqp_port/%2f"; exit 0
    fi
    kill -0 $launcher 2>/dev/null || { cat "$dir/stdout" >&2; die "RabbitMQ ended while starting"; }
    sleep 0.1
  done
  die "RabbitMQ was not ready after 60 s; see $dir/log"
  ;;
stop)
  if alive; then
    pid=$(cat "$dir/pid"); kill -TERM "$pid"
    gone "$pid" || { kill -KILL "$pid"; gone "$pid" || true; stop_epmd; die "it did not stop within 30 s and was killed"; }
  fi
  stop_epmd
  ;;
kill)
  if alive; then pid=$(cat "$dir/pid"); kill -KILL "$pid"; gone "$pid"; fi
  stop_epmd
  ;;
ctl) exec $bin/rabbitmqctl -n "$RABBITMQ_NODENAME" "$@" ;;
pid) cat "$dir/pid" ;;
*) die "unknown command $command" ;;
esac
