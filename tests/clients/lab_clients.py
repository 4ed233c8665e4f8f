"""Sends requests to the gateway of `tidegate lab` with a client library and its retries.

    lab_clients.py CLIENT OPERATIONS

The URL of the gateway is in TIDEGATE_URL. With TIDEGATE_FIRST_REQUEST, a request without retries comes first, so that
a limit rejects the next one. An operation that fails after all retries is reported and not an error.
"""

import os
import sys
import urllib.request

URL = os.environ["TIDEGATE_URL"]


def with_urllib3():
    import urllib3

    retry = urllib3.Retry(total=4, backoff_factor=0.1, status_forcelist=[429, 503], respect_retry_after_header=True)
    pool = urllib3.PoolManager(retries=retry)
    return lambda: pool.request("GET", f"{URL}/items").status


def urllib3_without_retry_after():
    import urllib3

    retry = urllib3.Retry(total=4, backoff_factor=0.1, status_forcelist=[429], respect_retry_after_header=False)
    pool = urllib3.PoolManager(retries=retry)
    return lambda: pool.request("GET", f"{URL}/items").status


def with_requests():
    import requests
    import urllib3

    retry = urllib3.Retry(total=3, backoff_factor=0.5, status_forcelist=[429])
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
    return lambda: session.get(f"{URL}/items").status_code


def with_anthropic():
    import anthropic

    client = anthropic.Anthropic(api_key="sk-lab", base_url=URL, max_retries=2)
    return lambda: len(client.models.list().data)


def with_boto3(mode: str):
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=URL,
        region_name="us-east-1",
        aws_access_key_id="lab",
        aws_secret_access_key="lab",
        config=Config(retries={"mode": mode, "max_attempts": 4}),
    )
    return lambda: len(client.list_buckets()["Buckets"])


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
        "urllib3-without-retry-after": urllib3_without_retry_after,
        "requests": with_requests,
        "anthropic": with_anthropic,
        "boto3-legacy": lambda: with_boto3("legacy"),
        "boto3-standard": lambda: with_boto3("standard"),
    }
    operate = clients[library]()
    if "TIDEGATE_FIRST_REQUEST" in os.environ:
        urllib.request.urlopen(f"{URL}/").read()
    for _ in range(operations):
        try:
            print(library, operate())
        except Exception as error:
            print(library, type(error).__name__, error)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
