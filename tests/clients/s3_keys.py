"""Stores, reads, copies and deletes objects with unusual keys, and prints a JSON report of all results.

    s3_keys.py URL BUCKET ACCESS_KEY_ID SECRET_ACCESS_KEY

Creates the bucket. The report contains no bucket name, so the reports for two servers can be compared.
"""

import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

KEYS = [
    "plain",
    "dir/plain",
    "a//b",
    "a///b",
    "//a",
    "/leading",
    "/",
    "trailing/",
    "trailing//",
    "a/..",
    "a/../",
    "a/../b",
    "../a",
    "..",
    ".",
    "./a",
    "a/.",
    "a/./b",
    "a/../../b",
    "a/...",
    ".hidden",
    "..hidden",
    "a%2Fb",
    "a%2fb",
    "%2F",
    "%2e%2e/a",
    "a%252Fb",
    "a%5Cb",
    "100%",
    "100%25",
    "%",
    "%zz",
    "a b",
    " a ",
    "a+b",
    "a%20b",
    "a?b",
    "?",
    "a?b=c&d",
    "#",
    "a#b",
    "a;b",
    "a;x=1/b",
    "..;/a",
    "a\\b",
    "a\\..\\b",
    "a=b&c",
    "a:b@c",
    "a,b!c$d'e(f)*g",
    'a"b',
    "a<b>c",
    "a{b}|c^d`e",
    "a[b]",
    "~a-b_c.d",
    "é",
    "日本語/キー",
    "😀",
    "e\u0301",
    "a\u00a0b",
    "a\tb",
    "a\nb",
    "x" * 900,
]


def attempt(call, **arguments):
    """Returns the result of a call, or the code of its error."""
    try:
        return call(**arguments)
    except ClientError as error:
        return {"error": error.response["Error"].get("Code", "unknown")}
    except BotoCoreError as error:
        return {"error": type(error).__name__}


def store(s3, bucket: str, key: str) -> dict:
    """Puts, gets, heads and copies one object."""
    body = key.encode()
    results = {"put": attempt(s3.put_object, Bucket=bucket, Key=key, Body=body)}
    got = attempt(s3.get_object, Bucket=bucket, Key=key)
    results["get"] = got["Body"].read().decode() if "Body" in got else got
    results["head"] = attempt(s3.head_object, Bucket=bucket, Key=key)
    source = {"Bucket": bucket, "Key": key}
    results["copy"] = attempt(
        s3.copy_object, Bucket=bucket, Key=f"{key}.copy", CopySource=source
    )
    return {name: summary(result) for name, result in results.items()}


def delete(s3, bucket: str, key: str) -> list:
    """Deletes one object and its copy."""
    names = [key, f"{key}.copy"]
    return [summary(attempt(s3.delete_object, Bucket=bucket, Key=name)) for name in names]


def keys(s3, bucket: str) -> list[str]:
    listed = attempt(s3.list_objects_v2, Bucket=bucket)
    return sorted(item["Key"] for item in listed.get("Contents", []))


def summary(result):
    """Reduces a response to the members that do not change from run to run."""
    if not isinstance(result, dict):
        return result
    if "error" in result:
        return result
    status = result["ResponseMetadata"]["HTTPStatusCode"]
    return [status, result.get("ContentLength"), result.get("ETag")]


def main(url: str, bucket: str, key_id: str, secret: str) -> dict:
    s3 = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=Config(
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
        ),
    )
    created = summary(attempt(s3.create_bucket, Bucket=bucket))
    if "error" in created:
        return {"created": created}
    return {
        "created": created,
        "stored": {key: store(s3, bucket, key) for key in KEYS},
        "listed": keys(s3, bucket),
        "deleted": {key: delete(s3, bucket, key) for key in KEYS},
        # A path that is rewritten to that of the bucket would have deleted the bucket.
        "bucket": summary(attempt(s3.head_bucket, Bucket=bucket)),
        "left": keys(s3, bucket),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
