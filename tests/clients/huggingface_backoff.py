"""Sends two requests with huggingface_hub's `http_backoff`, and prints the status of each as JSON.

    huggingface_backoff.py URL

The first request uses up the rate limits. The gateway rejects the second one. `http_backoff` retries it after the time
that the first member of the `RateLimit` header field states, plus one second.
"""

import json
import sys

from huggingface_hub.utils import http_backoff


def main(url: str) -> list[int]:
    return [http_backoff("GET", url).status_code for _ in range(2)]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
