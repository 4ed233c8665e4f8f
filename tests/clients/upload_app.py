"""WSGI application for gunicorn: reads the request body and responds with its length."""


def app(environ, start_response):
    length = len(environ["wsgi.input"].read())
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(length).encode()]
