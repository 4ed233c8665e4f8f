"""Sends requests of simulated clients to the demo: about 40 per second, for a bounded time.

Usage: traffic.py HOST:PORT SECONDS. The demo trusts X-Forwarded-For of this machine, so each client has its own
address. The screenshot is taken after SECONDS, while the clients continue for 5 more seconds.
"""

import http.client
import math
import random
import re
import sys
import threading
import time

gateway, seconds = sys.argv[1], float(sys.argv[2])
begin = time.monotonic()
end = begin + seconds + 5


class Client:
    def __init__(self, address, agent):
        self.headers = {"X-Forwarded-For": address, "User-Agent": agent}
        self.left = 0
        self.connection = http.client.HTTPConnection(gateway, timeout=10)

    def send(self, path, body=None, **headers):
        """Sends a request. Returns its status, and the seconds to wait that the response states."""
        headers = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            self.connection.request("POST" if body else "GET", path, body, headers)
            response = self.connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return 0, 1
        self.left = int((re.search(r"r=(\d+)", response.headers.get("RateLimit", "")) or [0, 0])[1])
        return response.status, float(response.headers.get("Retry-After-Ms", "1000")) / 1000


def load():
    """Share of the clients' full speed, so that the plot is no straight line."""
    elapsed = time.monotonic() - begin
    return 0.65 + 0.35 * math.sin(elapsed / 47) * math.cos(elapsed / 19)


def patient(client):
    """Registers devices, and waits as long as each 429 states."""
    while time.monotonic() < end:
        status, wait = client.send("/o/client/register")
        time.sleep(wait if status == 429 else random.uniform(0.2, 0.6) / load())


def impatient(client, pause):
    """Ignores Retry-After: repeats a rejected request after a fixed pause."""
    while time.monotonic() < end:
        status, _ = client.send("/o/client/token")
        time.sleep(pause if status == 429 else random.uniform(0.2, 0.5))


def paced(client):
    """Uses nearly all of its quota of payments without a rejection, because it reads the tokens left in RateLimit."""
    while time.monotonic() < end:
        client.send("/v1/payments", '{"amount":300,"currency":"EUR"}')
        time.sleep(0.22 if client.left < 1 else 0.15)


def shop(client):
    """Makes payments with idempotency keys, and repeats every fourth request."""
    number = 0
    while time.monotonic() < end:
        number += 1
        key = f"order-{client.headers['X-Forwarded-For']}-{number}"
        for _ in range(2 if number % 4 == 0 else 1):
            client.send("/v1/payments", '{"amount":1200,"currency":"EUR"}', Idempotency_Key=key)
        time.sleep(random.uniform(0.3, 0.6) / load())


def reader(client):
    """Reads pages without a limit, some of which fail."""
    while time.monotonic() < end:
        fails = random.random() < 0.01
        client.send("/flaky/500" if fails else "/v1/payments/pay_1")
        time.sleep(random.uniform(0.2, 0.4) / load())


# The addresses are of the networks for documentation (RFC 5737).
clients = [
    (impatient, "203.0.113.44", "acme-sync/2.3", 0.12),
    (impatient, "198.51.100.23", "python-requests/2.31.0", 0.3),
    (impatient, "198.51.100.71", "Go-http-client/1.1", 0.7),
    (paced, "203.0.113.90", "billing-batch/1.8"),
    *((patient, f"192.0.2.{number}", "device-setup/5.1") for number in (12, 31, 57, 80)),
    *((shop, f"198.51.100.{number}", "webshop/3.0") for number in (5, 6, 7)),
    *((reader, f"203.0.113.{number}", "Mozilla/5.0") for number in (101, 102, 103)),
]
threads = []
for run, address, agent, *settings in clients:
    thread = threading.Thread(target=run, args=(Client(address, agent), *settings))
    thread.start()
    threads.append(thread)
for thread in threads:
    thread.join()
