"""Calls three gateways with Stripe's official Python client and prints the results as JSON.

    stripe_hints.py RETRIED LOST REJECTED

RETRIED  creates four customers behind a limit
LOST     creates a customer under one key twice, behind an API that loses its responses
REJECTED creates a customer behind a limit that is used up

The client repeats a request up to four times, as it decides.
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
