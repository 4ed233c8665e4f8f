# Everything a contributor runs.
#
#   make test            all tests, doctests included; installs what they need
#   make lint            formatting, clippy, and licences and advisories where cargo-deny is installed
#   make fmt             formats the sources
#   make crash           kills the release build under load, 200 times, and looks at every key afterwards
#   make bench           what the gateway's decisions cost, and how that grows
#   make disk            the store on disk with a million records, and durable requests a second
#   make peers           CPU per request beside nginx and HAProxy
#   make peers-clients   CPU per request with a thousand and with a million tracked clients

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test

# Where Debian puts nginx and HAProxy, and not everybody looks.
export PATH := $(PATH):/usr/sbin

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# Tests have the gateway die in places that no other build has.
TEST_FEATURES := --features failpoints

# What is needed beyond a Rust toolchain, as command=package.
TEST_NEEDS := cc=gcc
PEER_NEEDS := nginx=nginx haproxy=haproxy wrk=wrk

# Installs the packages whose commands are missing; touches nothing if there is none.
define install
	@missing=(); \
	for need in $(1); do \
	    command -v "$${need%%=*}" >/dev/null || missing+=("$${need#*=}"); \
	done; \
	if (( $${#missing[@]} )); then \
	    as_root=; (( EUID == 0 )) || as_root=sudo; \
	    $$as_root apt-get update -qq; \
	    $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"; \
	fi
endef

.PHONY: test lint fmt crash bench disk peers peers-clients

test:
	$(call install,$(TEST_NEEDS))
	@if command -v cargo-nextest >/dev/null; then \
	    failed=0; \
	    $(CARGO) nextest run --locked $(TEST_FEATURES) || failed=1; \
	    $(CARGO) test --locked $(TEST_FEATURES) --doc || failed=1; \
	    exit $$failed; \
	else \
	    $(CARGO) test --locked $(TEST_FEATURES) --no-fail-fast; \
	fi

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --all-targets $(TEST_FEATURES) -- -D warnings
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
	$(CARGO) bench --locked --bench decisions

# What asks the store is built in a place of its own, so that the gateway beside it stays the release.
disk:
	$(CARGO) build --locked --release
	DISK_TIDEGATE="$(abspath $(TARGET))/release/tidegate" \
	    $(CARGO) bench --locked --profile measure --bench disk

# The gateway measured is the one people get, the release build. What drives it need not be fast, and
# built in the bench profile it would put another gateway in that one's place.
peers peers-clients:
	$(call install,$(PEER_NEEDS))
	$(CARGO) build --locked --release
	PEERS_TIDEGATE="$(abspath $(TARGET))/release/tidegate" \
	    $(CARGO) bench --locked --profile dev --bench peers -- $(if $(findstring clients,$@),clients,gateways)
