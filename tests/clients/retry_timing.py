"""Calls an API behind a limit with the official client of openai or anthropic and prints a JSON report.

    retry_timing.py openai|anthropic URL RETRIES

`rejected` has an entry per 429 that the client retries: `stated`, the value of Retry-After-Ms in seconds, and `waited`,
the seconds from the 429 to the next request of the client. `error` is the client's message for a 429 without retries.
"""

import importlib
import json
import sys
import time

import httpx2


class Log:
    """Times of the requests and of the rejections of one client."""

    def __init__(self) -> None:
        self.rejected: list[dict] = []
        self.since: float | None = None

    def sending(self, _: httpx2.Request) -> None:
        if self.since is not None:
            self.rejected[-1]["waited"] = time.monotonic() - self.since
            self.since = None

    def received(self, response: httpx2.Response) -> None:
        if response.status_code == 429:
            self.since = time.monotonic()
            stated = response.headers.get("retry-after-ms")
            self.rejected.append({"stated": stated and int(stated) / 1000})


def main(name: str, url: str, retries: int) -> dict:
    log = Log()
    sdk = importlib.import_module(name)
    client = {"openai": "OpenAI", "anthropic": "Anthropic"}[name]
    hooks = {"request": [log.sending], "response": [log.received]}
    client = getattr(sdk, client)(
        api_key="x", base_url=url, max_retries=5, http_client=httpx2.Client(event_hooks=hooks)
    )
    while len(log.rejected) < retries:
        client.models.list()
    rejected = log.rejected.copy()
    strict = client.with_options(max_retries=0)
    while True:
        try:
            strict.models.list()
        except sdk.RateLimitError as error:
            return {"rejected": rejected, "error": str(error)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
