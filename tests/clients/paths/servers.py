"""Servers of the path campaign, one per name: servers.py NAME PORT. A server executes `/o/client/register` and marks
the response with `X-Executed`."""

import asyncio
import logging
import sys

NAME, PORT = sys.argv[1], int(sys.argv[2])
LIMITED = "/o/client/register"
EXECUTED = {"X-Executed": "1"}


def gunicorn(app):
    """Runs gunicorn with its defaults, except for threads that keep connections open."""
    from gunicorn.app.base import BaseApplication

    class Server(BaseApplication):
        def load_config(self):
            self.cfg.set("bind", f"127.0.0.1:{PORT}")
            self.cfg.set("worker_class", "gthread")
            self.cfg.set("threads", 8)
            self.cfg.set("loglevel", "critical")

        def load(self):
            return app

    Server().run()


def wsgi():
    def app(environ, start_response):
        executed = environ["PATH_INFO"] == LIMITED
        status = "200 OK" if executed else "404 Not Found"
        start_response(status, list(EXECUTED.items()) if executed else [])
        return [b"ok"]

    gunicorn(app)


def flask():
    from flask import Flask

    app = Flask(__name__)
    app.route(LIMITED, methods=["GET", "POST"])(lambda: ("ok", EXECUTED))
    gunicorn(app)


def django():
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path, re_path

    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
    logging.disable()

    def view(_request):
        return HttpResponse("ok", headers=EXECUTED)

    global urlpatterns
    urlpatterns = [path(LIMITED[1:], view), re_path(f"^{LIMITED[1:]}$", view)]
    gunicorn(get_wsgi_application())


def bottle():
    import bottle
    import waitress

    app = bottle.Bottle()
    app.route(LIMITED, ["GET", "POST"], lambda: bottle.HTTPResponse("ok", headers=EXECUTED))
    logging.disable()
    waitress.serve(app, host="127.0.0.1", port=PORT)


def cherrypy():
    import cherrypy

    class Client:
        @cherrypy.expose
        def register(self):
            cherrypy.response.headers.update(EXECUTED)
            return "ok"

    root = type("Root", (), {})()
    root.o = type("O", (), {})()
    root.o.client = Client()
    cherrypy.config.update(
        {"server.socket_port": PORT, "environment": "embedded", "log.screen": False}
    )
    cherrypy.quickstart(root)


def fastapi():
    import uvicorn
    from fastapi import FastAPI, Response

    app = FastAPI()
    app.api_route(LIMITED, methods=["GET", "POST"])(lambda: Response("ok", headers=EXECUTED))
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="critical")


def aiohttp():
    from aiohttp import web

    async def view(_request):
        return web.Response(text="ok", headers=EXECUTED)

    app = web.Application()
    app.router.add_route("*", LIMITED, view)
    logging.disable()
    web.run_app(app, host="127.0.0.1", port=PORT, print=None, access_log=None)


def tornado():
    from tornado import web

    class View(web.RequestHandler):
        def get(self):
            self.set_header("X-Executed", "1")
            self.write("ok")

        post = get

    async def serve():
        web.Application([(LIMITED, View)]).listen(PORT, "127.0.0.1")
        await asyncio.Event().wait()

    logging.disable()
    asyncio.run(serve())


globals()[NAME]()
