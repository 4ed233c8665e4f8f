#!/usr/bin/env bash
# Checks the files for containers without a container engine: lints them, checks their configurations, and runs the
# binary of `make dist` in a directory that has only the files of the image.
#
# The binary has its own namespaces. Its processes, mounts and sockets end with it, however this script ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath "${CARGO_TARGET_DIR:-target}")
binary=$target/dist/tidegate
work=$target/image-test
tools=$work/tools
context=$work/context
root=$work/root
in_image=(chroot --userspec=65532:65532 "$root")

main() {
    trap 'rm -rf "$context" "$root"' EXIT
    rm -rf "$context" "$root"
    mkdir -p "$context" "$root"
    install_tools
    check_context
    check_manifests
    make_root
    unshare --mount --net --pid --fork --kill-child --mount-proc "$0" container
}

install_tools() {
    if [[ ! $tools/installed -nt packaging/requirements.txt ]]; then
        python3 -m venv --clear "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement packaging/requirements.txt
        touch "$tools/installed"
    fi
}

# Checks that the build context has the files that the Dockerfile and Cargo.toml name.
check_context() {
    local included source
    mapfile -t included < <(sed -n 's/^!//p' .dockerignore)
    git ls-files -z --cached --others --exclude-standard -- "${included[@]}" |
        xargs --null cp --parents --target-directory="$context"
    while read -r source; do
        [[ -e $context/$source ]] || fail "the Dockerfile copies $source, which .dockerignore excludes"
    done < <(sed -nE 's/^COPY ([^-].*) [^ ]+$/\1/p' Dockerfile)
    cargo metadata --locked --no-deps --format-version 1 --manifest-path "$context/Cargo.toml" >/dev/null
    echo "build context: $(du --summarize --human-readable "$context" | cut -f 1)"
}

check_manifests() {
    "$tools/bin/hadolint" Dockerfile
    "$tools/bin/python" -c '
import sys, compose_spec
compose_spec.PyCompose.from_yaml(sys.stdin.read())' <compose.yaml
    "$tools/bin/kubernetes-validate" --strict packaging/kubernetes/tidegate.yaml
    "$tools/bin/python" -c '
import sys, yaml
manifests = yaml.safe_load_all(sys.stdin)
print(next(manifest["data"]["tidegate.toml"] for manifest in manifests if manifest["kind"] == "ConfigMap"))
' <packaging/kubernetes/tidegate.yaml >"$work/kubernetes.toml"
    local file
    for file in packaging/*/tidegate.toml "$work/kubernetes.toml"; do
        "$binary" check --no-files "$file"
    done
}

# Makes the directory of the image: its base has the libraries, the certificates and the user.
make_root() {
    ldd "$binary" | grep --only-matching '/[^ ]*' | xargs cp --parents --dereference --target-directory="$root"
    cp --parents --dereference --target-directory="$root" /etc/ssl/certs/ca-certificates.crt
    install -D --strip "$binary" "$root/usr/bin/tidegate"
    install -D --mode=0644 packaging/docker/tidegate.toml "$root/etc/tidegate/tidegate.toml"
    install -D --mode=0644 <(echo "nonroot:x:65532:65532::/home/nonroot:/sbin/nologin") "$root/etc/passwd"
    install --directory --owner=65532 --group=65532 --mode=0700 "$root/var/lib/tidegate"
    mkdir "$root/proc"
}

container() {
    ip link set lo up
    mount -t proc proc "$root/proc"
    python3 -m http.server 9000 --bind 127.0.0.1 --directory packaging &>/dev/null &
    curl --silent --output /dev/null --retry 9 --retry-delay 1 --retry-connrefused http://127.0.0.1:9000/
    export TIDEGATE__UPSTREAM__API__SERVERS='["http://127.0.0.1:9000"]'
    # shellcheck disable=SC2046 # Each instruction is several words.
    "${in_image[@]}" $(instruction ENTRYPOINT) $(instruction CMD) &>"$work/gateway.log" &
    local gateway=$! deadline=$((SECONDS + 20)) statuses
    # shellcheck disable=SC2046
    until "${in_image[@]}" $(instruction 'HEALTHCHECK .*CMD') &>/dev/null; do
        (( SECONDS < deadline )) || fail "not ready after 20 s"
        sleep 0.1
    done
    # The address shows that the gateway listens on 0.0.0.0.
    statuses=$(curl --silent --output /dev/null --write-out '%{http_code} ' 'http://127.0.0.2:8080/?n=[1-30]')
    [[ $statuses == 200*429* ]] || fail "no 200 before a 429: $statuses"
    kill -TERM "$gateway"
    wait "$gateway"
    echo "the image starts, is healthy, responds and stops"
}

# Prints the words of an instruction in the Dockerfile.
instruction() {
    sed -nE "s/^$1 \[(.*)\]$/\1/p" Dockerfile | tr --delete '",'
}

fail() {
    echo "error: $1" >&2
    if [[ -f $work/gateway.log ]]; then tail -n 20 "$work/gateway.log" >&2; fi
    exit 1
}

"${1:-main}"
