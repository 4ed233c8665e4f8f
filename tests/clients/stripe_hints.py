"""Calls three gateways with Stripe's official Python client and prints the results as JSON.

    stripe_hints.py RETRIED LOST REJECTED

The arguments are the URLs of the gateways:

RETRIED   Its rate limit admits two requests per second. The script creates four customers.
LOST      Its API closes connections without a response. The script creates a customer twice with one idempotency key.
REJECTED  Its rate limit is exhausted. The script creates one customer.

The client decides by its own rules whether to retry, and retries a request up to four times.
"""

import json
import sys

import stripe


def create(url: str, key: str | None = None) -> dict:
    client = stripe.StripeClient(
        "sk_test_x",
        base_addresses={"api": url},
        max_network_retries=4,
        http_client=stripe.RequestsClient(timeout=20),
    )
    options = {"idempotency_key": key} if key else {}
    try:
        customer = client.v1.customers.create({"email": "ann@example.com"}, options)
    except stripe.StripeError as error:
        return {
            "error": type(error).__name__,
            "status": error.http_status,
            "message": str(error),
        }
    return {"id": customer.id}


def main(retried: str, lost: str, rejected: str) -> dict:
    return {
        "retried": [create(retried) for _ in range(4)],
        "lost": [create(lost, "k1") for _ in range(2)],
        "rejected": create(rejected),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
