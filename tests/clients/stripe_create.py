"""Creates one customer with Stripe's official client, and prints the result as JSON.

    stripe_create.py URL TIMEOUT

The client generates an idempotency key and retries the request with it, at most twice. This script does not set a
key: the test shows what an application gets that only uses the client.
"""

import json
import sys

import stripe


def main(url: str, timeout: float) -> dict:
    client = stripe.StripeClient(
        "sk_test_x",
        base_addresses={"api": url},
        max_network_retries=2,
        http_client=stripe.RequestsClient(timeout=timeout),
    )
    try:
        customer = client.v1.customers.create({"email": "ann@example.com"})
    except stripe.StripeError as error:
        return {
            "error": type(error).__name__,
            "status": error.http_status,
            "message": str(error),
        }
    headers = customer.last_response.headers
    return {"id": customer.id, "replayed": headers.get("Idempotent-Replayed")}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]))))
