#!/usr/bin/env bash
# Checks the units, and installs the Debian package of `make dist` in a new Debian 12. There it starts, reloads, stops,
# removes and purges the gateway. Process 1 is not systemd, so this script runs the commands of the unit.
#
# The installation has its own namespaces. Its processes, mounts and sockets end with it, however this script ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath "${CARGO_TARGET_DIR:-target}")
work=$target/package-test
root=$work/root
unit=packaging/systemd/tidegate.service
config=$root/etc/tidegate/tidegate.toml
namespaces=(unshare --mount --pid --fork --kill-child --mount-proc)

main() {
    rm -rf "$root" "$work/units"
    trap 'rm -rf "$root" "$work/units"' EXIT
    mkdir -p "$work"/{cache,units}
    check_units
    local mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Codename: bookworm' | head -n 1)
    "${namespaces[@]}" debootstrap --variant=minbase --include=procps,systemd-standalone-sysusers \
        --cache-dir="$work/cache" bookworm "$root" "$mirror" >"$work/debootstrap.log"
    cp "$target"/packages/tidegate_*.deb "$root/tmp/tidegate.deb"
    "${namespaces[@]}" --net "$0" installation
}

check_units() {
    # `verify` requires that the commands exist.
    local name
    for name in tidegate.service optional/tidegate.socket; do
        sed "s|/usr/bin/tidegate|$target/dist/tidegate|" "packaging/systemd/$name" >"$work/units/${name##*/}"
    done
    systemd-analyze verify --man=no "$work"/units/*
    systemd-analyze security --offline=true --threshold=25 "$unit" | tail -n 1
}

installation() {
    ip link set lo up
    mount -t proc proc "$root/proc"
    python3 -m http.server 9000 --bind 127.0.0.1 --directory packaging &>/dev/null &
    curl --silent --output /dev/null --retry 9 --retry-delay 1 --retry-connrefused http://127.0.0.1:9000/
    local before statuses
    before=$(files)

    started=$EPOCHREALTIME
    inside dpkg --install /tmp/tidegate.deb
    start_gateway
    step "ready"
    statuses=$(curl --silent --output /dev/null --write-out '%{http_code} ' 'http://127.0.0.1:8080/?n=[1-40]')
    [[ $statuses == 200*429* ]] || fail "no 200 before a 429: $statuses"
    step "first 429"
    (( $(elapsed) < 60000 )) || fail "the first 429 took more than 60 s"

    sed -i 's/^burst = 9/burst = 4/' "$config"
    inside tidegate reload
    expect "reloaded" 5 "$(quota)"
    sed -i 's/^rate = .*/rate = "fast"/' "$config"
    if inside tidegate reload --admin http://127.0.0.1:9090; then
        fail "the gateway accepted an invalid configuration"
    fi
    expect "configuration in force after a rejected reload" 5 "$(quota)"
    sed -i 's/^rate = .*/rate = "7\/s"/' "$config"
    inside dpkg --install /tmp/tidegate.deb
    expect "a second installation keeps the configuration" 1 "$(grep -c '^rate = "7/s"' "$config")"

    kill -TERM "$gateway"
    wait "$gateway"
    step "stopped"
    inside dpkg --remove tidegate
    [[ -e $config && -e $root/var/lib/tidegate/identity ]] || fail "the removal deleted configuration or state"
    inside dpkg --purge tidegate
    expect "no file is left after purge" "" "$(comm -13 <(echo "$before") <(files))"
}

# Starts the gateway as systemd would.
start_gateway() {
    local command user
    command=$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/tidegate.service")
    user=$(sed -n 's/^User=//p' "$root/usr/lib/systemd/system/tidegate.service")
    inside install --directory --owner="$user" --mode=0700 /var/lib/tidegate
    # shellcheck disable=SC2086 # The command is several words.
    chroot --userspec="$user:$user" "$root" $command 2>"$work/gateway.log" &
    gateway=$!
    wait_for inside tidegate ready
}

inside() {
    chroot "$root" "$@"
}

# Prints the burst + 1 of the limit in force.
quota() {
    curl --silent --head http://127.0.0.1:8080/ | sed -n 's/^ratelimit-policy: .*q=\([0-9]*\).*/\1/p'
}

# Lists all files except those that dpkg and systemd-sysusers keep for themselves.
files() {
    find "$root" \( -path "$root/proc" -o -path "$root/var/lib/dpkg" \) -prune -o -print |
        grep --invert-match --extended-regexp '/var/log/dpkg.log$|/etc/(passwd|group|shadow|gshadow)-$|/etc/\.pwd\.lock$' | sort
}

wait_for() {
    local deadline=$((SECONDS + 20))
    until "$@" &>/dev/null; do
        (( SECONDS < deadline )) || fail "still failing after 20 s: $*"
        sleep 0.1
    done
}

expect() {
    [[ $3 == "$2" ]] || fail "$1: expected '$2', found '$3'"
    step "$1"
}

step() {
    printf '%6d ms  %s\n' "$(elapsed)" "$1"
}

# Prints the milliseconds since the installation began.
elapsed() {
    echo $(( (${EPOCHREALTIME/./} - ${started/./}) / 1000 ))
}

fail() {
    echo "error: $1" >&2
    if [[ -f $work/gateway.log ]]; then tail -n 20 "$work/gateway.log" >&2; fi
    exit 1
}

"${1:-main}"
