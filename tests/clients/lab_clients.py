"""Sends requests to the gateway of `tidegate lab` with a client library and its retries.

    lab_clients.py urllib3|stripe|openai|authorization-api OPERATIONS

The URL of the gateway is in TIDEGATE_URL. An operation that fails after all retries is reported and not an error.
"""

import os
import sys

URL = os.environ["TIDEGATE_URL"]


def with_urllib3():
    import urllib3

    retry = urllib3.Retry(total=4, backoff_factor=0.1, status_forcelist=[429, 503], respect_retry_after_header=True)
    pool = urllib3.PoolManager(retries=retry)
    return lambda: pool.request("GET", f"{URL}/items").status


def with_stripe():
    import stripe

    client = stripe.StripeClient("sk_test_lab", base_addresses={"api": URL}, max_network_retries=2)
    return lambda: client.v1.customers.create({"email": "ann@example.com"}).id


def with_openai():
    import openai

    client = openai.OpenAI(api_key="sk-lab", base_url=URL, max_retries=2)
    return lambda: len(client.models.list().data)


def authorization_api():
    """Backoff of 1, 2, 4, 8 and 16 s with 25 % jitter, five attempts, and Retry-After in seconds wins."""
    import random
    import time

    import urllib3

    pool = urllib3.PoolManager(retries=False)

    def operate():
        for attempt in range(5):
            response = pool.request("GET", f"{URL}/authorize")
            if response.status != 429 and response.status < 500:
                return response.status
            if attempt == 4:
                raise RuntimeError("rate limit exceeded")
            delay = 2**attempt * random.uniform(0.75, 1.25)
            time.sleep(float(response.headers.get("Retry-After", delay)))

    return operate


def main(library: str, operations: int) -> None:
    clients = {
        "urllib3": with_urllib3,
        "stripe": with_stripe,
        "openai": with_openai,
        "authorization-api": authorization_api,
    }
    operate = clients[library]()
    for _ in range(operations):
        try:
            print(library, operate())
        except Exception as error:
            print(library, type(error).__name__, error)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
