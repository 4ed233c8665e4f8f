"""Counts how often each request was executed. `asgi` is for uvicorn, `wsgi` for gunicorn.

GET /counts responds with {path: executions}. Every other request is counted.
"""

import json
import threading

counts = {}
lock = threading.Lock()


def execute(path):
    if path == "/counts":
        return json.dumps(counts).encode()
    with lock:
        counts[path] = counts.get(path, 0) + 1
    return b"done"


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    while (await receive()).get("more_body"):
        pass
    body = execute(scope["path"])
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def wsgi(environ, start_response):
    environ["wsgi.input"].read()
    body = execute(environ["PATH_INFO"])
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
