// Servers of the path campaign, one per name: node servers.cjs NAME PORT. A server executes `/o/client/register` and
// marks the response with `X-Executed`.
const http = require("node:http");
const url = require("node:url");
const [name, port] = process.argv.slice(2);
const LIMITED = "/o/client/register";
const listening = { host: "127.0.0.1", port: Number(port) };

function respond(response, isLimited) {
  if (isLimited) response.setHeader("x-executed", "1");
  response.statusCode = isLimited ? 200 : 404;
  response.end("ok");
}

// A server without a framework, which compares the path that `read` finds in the target.
function plain(read) {
  const server = http.createServer((request, response) => {
    let path;
    try {
      path = read(request.url);
    } catch {
      path = undefined;
    }
    respond(response, path === LIMITED);
  });
  server.listen(listening);
}

function express(module) {
  const app = require(module)();
  app.all(LIMITED, (request, response) => respond(response, true));
  app.listen(listening.port, listening.host);
}

function fastify(module) {
  const app = require(module)();
  const handler = (request, reply) => reply.header("x-executed", "1").send("ok");
  app.route({ method: ["GET", "POST"], url: LIMITED, handler });
  app.listen(listening);
}

const servers = {
  "node-url": () => plain((target) => new URL(target, "http://api.example").pathname),
  "node-url-decoded": () =>
    plain((target) => decodeURIComponent(new URL(target, "http://api.example").pathname)),
  "node-url-parse": () => plain((target) => url.parse(target).pathname),
  "node-split": () => plain((target) => decodeURIComponent(target.split("?")[0])),
  express4: () => express("express4"),
  express5: () => express("express5"),
  fastify4: () => fastify("fastify4"),
  fastify5: () => fastify("fastify5"),
  koa: () => {
    const Koa = require("koa");
    const { Router } = require("@koa/router");
    const router = new Router();
    router.all(LIMITED, (context) => {
      context.set("x-executed", "1");
      context.body = "ok";
    });
    new Koa().use(router.routes()).listen(listening.port, listening.host);
  },
  hapi: () => {
    const server = require("@hapi/hapi").server(listening);
    const handler = (request, toolkit) => toolkit.response("ok").header("x-executed", "1");
    server.route({ method: "*", path: LIMITED, handler });
    server.start();
  },
};

servers[name]();
