"""Runs moto as an S3 server that checks signatures, until its standard input ends.

    s3_server.py

Prints one line of JSON: the port of the server, and the access key of a user with all permissions.
"""

import json
import logging
import sys

import boto3
from moto import settings
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

ADMIN = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    iam = boto3.client(
        "iam",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="unchecked",
        aws_secret_access_key="unchecked",
    )
    iam.create_user(UserName="test")
    iam.put_user_policy(
        UserName="test", PolicyName="all", PolicyDocument=json.dumps(ADMIN)
    )
    key = iam.create_access_key(UserName="test")["AccessKey"]
    # From now on, moto checks the signature of every request.
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    report = {"port": port, "id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}
    print(json.dumps(report), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
