#!/usr/bin/env bash
# Makes the pictures of README.md, docs/images/dashboard.png and docs/images/terminal.svg, from a running demo.
#
#   TIDEGATE          binary; default: the build of `cargo build --release`
#   TRAFFIC_SECONDS   time for which simulated clients send requests before the screenshot; default: 480
#   GATEWAY, ADMIN    addresses of the demo, which are in the pictures; default: 127.0.0.1:8080 and 127.0.0.1:9090
#   CHROMIUM          browser; default: chromium

set -euo pipefail
cd "$(dirname "$0")/../.."

gateway=${GATEWAY:-127.0.0.1:8080}
admin=${ADMIN:-127.0.0.1:9090}
images=docs/images
if [[ -z ${TIDEGATE:-} ]]; then
    cargo build --locked --release
    TIDEGATE=${CARGO_TARGET_DIR:-target}/release/tidegate
fi
TIDEGATE=$(realpath "$TIDEGATE")

work=$(mktemp -d)
started=()
stop() {
    (( ${#started[@]} == 0 )) || kill "${started[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 1' INT TERM

# Starts the demo, and waits until it is ready.
start() {
    "$TIDEGATE" demo --listen "$gateway" --admin "$admin" >"$work/demo.log" 2>&1 &
    local demo=$!
    started+=("$demo")
    for _ in {1..100}; do
        kill -0 "$demo" 2>/dev/null || break
        ! curl -fs -o /dev/null "http://$admin/readyz" || return 0
        sleep 0.1
    done
    cat "$work/demo.log" >&2
    return 1
}

# Virtual time lets the browser take the picture after the page has loaded its figures.
screenshot() {
    "${CHROMIUM:-chromium}" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars \
        --disable-background-networking --disable-component-update --disable-sync --user-data-dir="$work/profile" \
        --window-size="$2" --virtual-time-budget=6000 --screenshot="$3" "$1" 2>"$work/chromium.log" || {
        cat "$work/chromium.log" >&2
        return 1
    }
}

start
python3 -B $images/traffic.py "$gateway" "${TRAFFIC_SECONDS:-480}" &
traffic=$!
started+=("$traffic")
sleep "${TRAFFIC_SECONDS:-480}" &
started+=("$!")
wait "$!"
screenshot "http://$admin/" 1200,1045 "$PWD/$images/dashboard.png"
python3 -B $images/terminal.py "$TIDEGATE" "$gateway" "$admin" $images/terminal.svg
wait "$traffic"
ls -l $images/dashboard.png $images/terminal.svg
