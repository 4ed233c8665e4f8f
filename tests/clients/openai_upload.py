"""Uploads one file with OpenAI's official client under one idempotency key, and prints a JSON report.

    openai_upload.py URL TIMEOUT

TIMEOUT is in seconds, for each attempt. The client encodes the multipart form again for each attempt, with a new
boundary. In the report, `types` lists the content type of each attempt.
"""

import json
import sys

import httpx2
import openai


def main(url: str, timeout: float) -> dict:
    types: list[str] = []

    def record(request: httpx2.Request) -> None:
        types.append(request.headers["content-type"])

    client = openai.OpenAI(
        api_key="x",
        base_url=url,
        max_retries=3,
        timeout=timeout,
        http_client=httpx2.Client(event_hooks={"request": [record]}),
    )
    try:
        response = client.files.with_raw_response.create(
            file=("orders.jsonl", b'{"order": 17}\n'),
            purpose="batch",
            extra_headers={"Idempotency-Key": "upload-17"},
        )
    except openai.OpenAIError as error:
        return {"error": repr(error), "types": types}
    return {
        "id": response.parse().id,
        "replayed": response.headers.get("idempotent-replayed"),
        "types": types,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]))))
