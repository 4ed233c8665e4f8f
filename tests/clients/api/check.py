"""Checks the admin API against its OpenAPI document with Schemathesis: check.py TIDEGATE SECONDS [OPTION...].

Requests to the gateway and a small upstream continue during the check, so that the lists of the API are not empty. POST
`drain` is left out, because it ends the gateway, and GET `events`, because its response has no end. This script checks
the events itself."""

import http.client
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BINARY = os.path.abspath(sys.argv[1])
SECONDS, OPTIONS = int(sys.argv[2]), sys.argv[3:]
HERE = pathlib.Path(__file__).resolve().parent

# Members of each type of event.
EVENTS = {
    "rejected": {"at", "limit", "route", "key", "wait", "early"},
    "circuit": {"at", "upstream", "server", "state"},
    "reload": {"at", "result", "error"},
    "store": {"at", "part", "degraded"},
    "lost": {"count"},
}

# Values that exist in the gateway, which random texts would not find. Other requests have random values.
SETTINGS = """
[dictionaries]
limits = { values = ["device", "tenant", "both", "token", "trial", "paced"] }
values = { values = ["192.0.2.7", "192.0.2.8", "acme", "global", "192.0.2.7/acme"] }
addresses = { values = ["192.0.2.7", "192.0.2.8", "2001:db8::1", "127.0.0.1"] }
keys = { values = ["completed", "unknown", "binary", "in-progress"] }
upstreams = { values = ["api"] }
servers = { values = ["SERVER"] }
runs = { values = ["run-0", "run-1", "run-2", "192.0.2.7"] }
scenarios = { values = ["flaky", "plain"] }
methods = { values = ["GET", "POST"] }
paths = { values = ["/", "/tenants", "/keyed", "/scripted", "/by-client"] }

[parameters]
"path.limit" = { dictionary = "limits", probability = 0.9 }
"path.value" = { dictionary = "values", probability = 0.9 }
"path.address" = { dictionary = "addresses", probability = 0.9 }
"path.key" = { dictionary = "keys", probability = 0.9 }
"path.upstream" = { dictionary = "upstreams", probability = 0.9 }
"path.server" = { dictionary = "servers", probability = 0.9 }
"path.id" = { dictionary = "runs", probability = 0.9 }
"query.scenario" = { dictionary = "scenarios", probability = 0.5 }
"body.scenario" = { dictionary = "scenarios", probability = 0.5 }
"body.method" = { dictionary = "methods", probability = 0.9 }
"body.path" = { dictionary = "paths", probability = 0.5 }
"body.peer" = { dictionary = "addresses", probability = 0.5 }

# The document does not state which addresses, methods, paths, keys and ids are valid, because some of that depends on
# the configuration. So 400 is a correct response to a request that the document allows.
[[operations]]
include-path = [
    "/admin/v1/clients/{address}",
    "/admin/v1/explain",
    "/admin/v1/idempotency/keys/{key}",
    "/admin/v1/lab/runs",
    "/admin/v1/lab/runs/{id}",
    "/admin/v1/limits/{limit}/keys/{value}",
]
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409]
"""


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def respond(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "drop" in self.path:
            self.close_connection = True
            return
        if "slow" in self.path:
            time.sleep(5)
        body = b"\xff\x00" if "binary" in self.path else b"hello"
        self.send_response(500 if "fail" in self.path else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = respond

    def log_message(self, *_):
        pass


def send(address, method, path, headers):
    try:
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request(method, path, headers=headers)
        connection.getresponse().read()
        connection.close()
    except (OSError, http.client.HTTPException):
        # The upstream drops some requests.
        pass


def send_traffic(address, done):
    """Sends requests of each kind until `done`."""
    client = lambda: {"X-Forwarded-For": random.choice(["192.0.2.7", "192.0.2.8", "2001:db8::1"])}
    tenant = lambda: client() | {"X-Tenant": random.choice(["acme", "other"]), "Authorization": "Bearer x"}
    for round in range(1 << 30):
        for path in ["/", "/", "/fail"]:
            send(address, "GET", path, client() | {"User-Agent": "poller/1"})
        send(address, "GET", "/tenants", tenant())
        send(address, "GET", "/by-client", client())
        send(address, "GET", f"/t/run-{round % 3}/scripted", client())
        for key, path in [("completed", ""), ("binary", "binary")]:
            send(address, "POST", f"/keyed/{path}", client() | {"Idempotency-Key": key})
        # A key with one scope can be freed without naming the scope.
        send(address, "POST", "/keyed/drop", {"Idempotency-Key": "unknown"})
        if round % 20 == 0:
            slow = {"Idempotency-Key": "in-progress"}
            threading.Thread(target=send, args=(address, "POST", "/keyed/slow", slow), daemon=True).start()
        if done.wait(0.1):
            return


def check_events(address, seconds):
    """Reads events for some seconds, and returns the number of each type."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/admin/v1/events")
    response = connection.getresponse()
    assert response.status == 200, response.status
    assert response.headers["Content-Type"] == "text/event-stream", response.headers["Content-Type"]
    send(address, "POST", "/admin/v1/reload", {})
    counts, kind, end = {}, None, time.monotonic() + seconds
    while time.monotonic() < end:
        line = response.readline().decode().rstrip("\n")
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            members = json.loads(value).keys()
            assert members == EVENTS[kind], line
            counts[kind] = counts.get(kind, 0) + 1
        else:
            assert line in ("", ":"), line
    connection.close()
    assert {"rejected", "reload"} <= counts.keys(), counts
    return counts


def main():
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    server = "127.0.0.1:%d" % upstream.server_port
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        config = (HERE / "gateway.toml").read_text().replace("{upstream}", f"http://{server}")
        (directory / "tidegate.toml").write_text(config)
        (directory / "schemathesis.toml").write_text(SETTINGS.replace("SERVER", server))
        log = directory / "log"
        with log.open("w") as output:
            gateway = subprocess.Popen(
                [BINARY, "serve", "--config", "tidegate.toml", "--log-format", "json"],
                cwd=directory, env=os.environ | {"RUST_LOG": "info,tidegate::access=off"}, stderr=output,
            )
        try:
            passed = run(gateway, log, directory)
        finally:
            gateway.terminate()
            gateway.wait(60)
    sys.exit(0 if passed else 1)


def listeners(gateway, log):
    """Returns the addresses of the listeners for requests and for the admin API, when both are open."""
    deadline, found = time.monotonic() + 30, {}
    while len(found) < 2:
        assert gateway.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
        events = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found = {it["message"]: it["address"].removeprefix("http://") for it in events if "listening" in it["message"]}
    return found["gateway listening"], found["admin listening"]


def run(gateway, log, directory):
    address, admin = listeners(gateway, log)
    done = threading.Event()
    traffic = threading.Thread(target=send_traffic, args=(address, done))
    traffic.start()
    try:
        print("events:", check_events(admin, 5), flush=True)
        # A proxy of the environment would get the requests.
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        checked = subprocess.run(
            [
                pathlib.Path(sys.executable).parent / "schemathesis",
                "--config-file", directory / "schemathesis.toml",
                "run", f"http://{admin}/admin/v1/openapi.json",
                "--exclude-path", "/admin/v1/drain", "--exclude-path", "/admin/v1/events",
                # A refilled bucket still exists, and the traffic creates keys and runs again.
                "--checks", "all", "--exclude-checks", "use_after_free", "--continue-on-failure",
                "--max-time", str(SECONDS),
                "--generation-database", "none", "--request-timeout", "20", "--max-redirects", "0",
                *OPTIONS,
            ],
            cwd=directory, env=environment,
        )
    finally:
        done.set()
        traffic.join()
    log = log.read_text()
    assert gateway.poll() is None, log
    assert "panicked at" not in log, log
    return checked.returncode == 0


main()
