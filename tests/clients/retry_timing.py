"""Calls an API behind a rate limit with the official client of OpenAI or Anthropic, and prints a JSON report.

    retry_timing.py openai|anthropic URL RETRIES

The script calls the API until the client has received RETRIES responses with the status 429. In the report, `rejected`
has an entry for each 429 that the client retries. `stated` is the value of Retry-After-Ms, converted to seconds.
`waited` is the number of seconds from the 429 to the next request. `error` is the client's error message for a 429 if
retries are switched off.
"""

import importlib
import json
import sys
import time

import httpx2


class Log:
    """Measures how long a client waits after each 429 before it sends its next request."""

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
