"""Clients of `tidegate lab` that retry wrongly, each in one way. Only the standard library is used.

    lab_broken.py endless|bad-request|changed-body|changed-key|early-date|post-without-key

The URL of the gateway is in TIDEGATE_URL.
"""

import email.utils
import http.client
import os
import sys
import time
import urllib.parse

URL = urllib.parse.urlsplit(os.environ["TIDEGATE_URL"])


class Client:
    """Sends requests on one connection, which is opened again after an error."""

    def __init__(self):
        self.connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=30)

    def send(self, method="GET", body=None, key=None):
        headers = {"Idempotency-Key": key} if key else {}
        self.connection.request(method, "/items", body=body, headers=headers)
        response = self.connection.getresponse()
        response.read()
        return response


def endless():
    client = Client()
    while client.send().status != 200:
        time.sleep(0.1)


def bad_request():
    client = Client()
    for attempt in range(3):
        if client.send().status == 200:
            break
        time.sleep(0.1 * 2**attempt)


def changed_body():
    client = Client()
    for attempt in range(3):
        if client.send("POST", f'{{"attempt":{attempt}}}', "order-1").status == 200:
            break
        time.sleep(0.1 * 2**attempt)


def changed_key():
    client = Client()
    for attempt in range(3):
        if client.send("POST", '{"amount":1200}', f"key-{attempt}").status == 200:
            break
        time.sleep(0.1 * 2**attempt)


def early_date():
    client = Client()
    for _ in range(3):
        response = client.send()
        if response.status == 200:
            break
        date = email.utils.parsedate_to_datetime(response.headers["Retry-After"])
        time.sleep(max(date.timestamp() - time.time() - 1, 0))


def post_without_key():
    client = Client()
    for attempt in range(3):
        if client.send("POST", '{"amount":1200}').status == 200:
            break
        time.sleep(0.1 * 2**attempt)


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")]()
