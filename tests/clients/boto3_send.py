"""Sends one message with boto3 to an API that looks like SQS, and prints a JSON report.

    boto3_send.py URL READ_TIMEOUT

READ_TIMEOUT is in seconds, for each attempt. An event hook adds an idempotency key once per call, so that all attempts
of the call have the same idempotency key. boto3 signs every attempt separately. In the report, `attempts` lists the
idempotency key and the signed headers of each attempt.
"""

import json
import sys
import uuid

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError


def main(url: str, timeout: float) -> dict:
    sqs = boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(
            read_timeout=timeout, retries={"mode": "standard", "total_max_attempts": 4}
        ),
    )
    attempts: list[dict] = []

    def add_key(params: dict, **_) -> None:
        params["headers"]["Idempotency-Key"] = str(uuid.uuid4())

    def record(request, **_) -> None:
        names = ["Idempotency-Key", "X-Amz-Date", "Authorization"]
        texts = {name: request.headers[name] for name in names}
        attempts.append(
            {name: text.decode() if isinstance(text, bytes) else text for name, text in texts.items()}
        )

    # boto3 emits `before-call` once for each call, and `before-send` once for each attempt.
    sqs.meta.events.register("before-call.sqs.SendMessage", add_key)
    sqs.meta.events.register("before-send.sqs.SendMessage", record)
    try:
        result = sqs.send_message(QueueUrl=f"{url}/1/orders", MessageBody="order 17")
    except (BotoCoreError, ClientError) as error:
        return {"error": repr(error), "attempts": attempts}
    headers = result["ResponseMetadata"]["HTTPHeaders"]
    return {
        "id": result["MessageId"],
        "replayed": headers.get("idempotent-replayed"),
        "attempts": attempts,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]))))
