"""Sends the same order with the same idempotency key for two users of one machine, and prints a JSON list.

Each element of the list describes one exchange: a request and its response. The script uses the library requests.

    requests_users.py oauth1|digest|cookies URL

In each mode the first user sends the order twice, and then the second user sends it once. In the mode `cookies`, the
first user sends another request between the two orders.
"""

import json
import sys

import requests
from requests.auth import HTTPDigestAuth
from requests_oauthlib import OAuth1Session

ORDER = {"data": "order=17", "headers": {"Idempotency-Key": "order-17"}}


def exchange(response: requests.Response) -> dict:
    sent = response.request.headers
    authorization = sent.get("Authorization")
    if isinstance(authorization, bytes):
        authorization = authorization.decode()
    return {
        "authorization": authorization,
        "cookie": sent.get("Cookie"),
        "status": response.status_code,
        "body": response.text,
        "replayed": response.headers.get("Idempotent-Replayed"),
        "set_cookie": response.headers.get("Set-Cookie"),
    }


def oauth1(url: str) -> list[requests.Response]:
    ann, bob = (
        OAuth1Session(f"key-of-{user}", "secret", "token", "token-secret")
        for user in ("ann", "bob")
    )
    return [user.post(f"{url}/orders", **ORDER) for user in (ann, ann, bob)]


def digest(url: str) -> list[requests.Response]:
    ann, bob = (HTTPDigestAuth(user, "secret") for user in ("ann", "bob"))
    return [requests.post(f"{url}/orders", auth=user, **ORDER) for user in (ann, ann, bob)]


def cookies(url: str) -> list[requests.Response]:
    ann, bob = requests.Session(), requests.Session()
    ann.get(f"{url}/login/ann")
    bob.get(f"{url}/login/bob")
    first = ann.post(f"{url}/orders", **ORDER)
    ann.get(f"{url}/")
    return [first, *(user.post(f"{url}/orders", **ORDER) for user in (ann, bob))]


if __name__ == "__main__":
    mode = {"oauth1": oauth1, "digest": digest, "cookies": cookies}[sys.argv[1]]
    print(json.dumps([exchange(response) for response in mode(sys.argv[2])]))
