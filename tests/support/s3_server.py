"""An S3 server on loopback: python s3_server.py LOG [FOLDER …]. Moto answers; every request is checked for its signature.

It makes the bucket `bucket` with a copy of each FOLDER, a user `reader` who may list and read and a user `writer` who
may do everything. It prints one JSON line with the `port` and each user's key and secret, and writes one line a request
to LOG: method, path and status.
"""

import json
import logging
import os
import sys
import threading
from pathlib import Path

# The client that makes users and bucket must not find a real user's credentials.
os.environ.update(AWS_ACCESS_KEY_ID="setup", AWS_SECRET_ACCESS_KEY="setup", AWS_DEFAULT_REGION="us-east-1")

import boto3
from moto import settings
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

ALLOWED = {"reader": ["s3:GetObject", "s3:ListBucket"], "writer": ["s3:*"]}


def logged(app, log):
    """The application with one line a request in `log`."""

    def answer(environ, start_response):
        def start(status, headers, *rest):
            query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
            print(environ["REQUEST_METHOD"], environ["PATH_INFO"] + query, status.split()[0], file=log, flush=True)
            return start_response(status, headers, *rest)

        return app(environ, start)

    return answer


def make_user(endpoint, name):
    """A user who may do what ALLOWED says in every bucket: the key and the secret."""
    iam = boto3.client("iam", endpoint_url=endpoint)
    statement = {"Effect": "Allow", "Action": ALLOWED[name], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=policy)
    made = iam.create_access_key(UserName=name)["AccessKey"]
    return made["AccessKeyId"], made["SecretAccessKey"]


def fill_bucket(endpoint, folders):
    """The bucket `bucket`, and in it the files of each folder below the folder's name."""
    s3 = boto3.client("s3", endpoint_url=endpoint)
    s3.create_bucket(Bucket="bucket")
    for folder in folders:
        for path in filter(Path.is_file, folder.rglob("*")):
            key = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            s3.put_object(Bucket="bucket", Key=key, Body=path.read_bytes())


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with open(sys.argv[1], "a") as log:
        app = DomainDispatcherApplication(create_backend_app)
        server = make_server("127.0.0.1", 0, logged(app, log), threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.port}"
        fill_bucket(endpoint, map(Path, sys.argv[2:]))
        users = {name: make_user(endpoint, name) for name in ALLOWED}
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0  # from now on, who asks must be who they say
        print(json.dumps({"port": server.port, **users}), flush=True)
        sys.stdin.read()  # until the test that started it closes the pipe


main()
