#!/bin/sh
# A SuperLink and two SuperNodes as real processes over loopback, and one run of the app.
#
#     sh processes.sh [app [options of flwr run]]
set -e
app=${1:-$(dirname "$0")/app}
[ $# -eq 0 ] || shift
port=${PORT:-39400}
export FLWR_HOME="${FLWR_HOME:-$(mktemp -d)}"
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:$port"
insecure = true
END

flower-superlink --insecure --disable-runtime-dependency-installation --port "$port" &
link=$!
sleep 5
flower-supernode --insecure --superlink "127.0.0.1:$port" --port "$((port + 1))" \
    --node-config "partition-id=0 num-partitions=2" &
one=$!
flower-supernode --insecure --superlink "127.0.0.1:$port" --port "$((port + 2))" \
    --node-config "partition-id=1 num-partitions=2" &
two=$!
trap 'kill $one $two $link; wait' EXIT
flwr run "$app" --stream "$@"
