"""Creates one customer with Stripe's official client, and prints the result as JSON.

    stripe_create.py URL TIMEOUT

TIMEOUT is in seconds, for each attempt. The client generates an idempotency key and uses it for at most two retries.
The script does not set an idempotency key, like an application that uses the client without any options.
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
