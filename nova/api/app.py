"""The WSGI application: finds the route of a request, validates the request and calls the handler."""

import logging
import re
import time
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from nova import bus, context, exception
from nova.api import auth, errors, healthcheck, microversion, openapi, rates, router, routes, status_page, versions
from nova.api.clients import Clients
from nova.api.instrumentation import ROUTE, instrumented
from nova.api.reply import JSON, Reply
from nova.api.request import Request, Response
from nova.api.validation import fields, schema
from nova.conf import CONF
from nova.http.messages import Environ, Wsgi
from nova.placement import app as placement_app
from nova.placement.errors import UnsupportedType
from nova.placement.request import PREFIX as PLACEMENT
from nova.placement.request import Request as PlacementRequest

LOG = logging.getLogger("nova.api.request")

_TYPES = frozenset({"", "text/plain", JSON, "application/vnd.openstack.compute+json"})
_WITH_BODY = frozenset({"POST", "PUT"})
_PREFIXES = {"v2": True, "v2.1": False}
_VARY = f"{microversion.HEADER}, {microversion.OLD_HEADER}"

# The smallest integer that does not fit into 64 signed bits. Only numbers with 19 or more digits can be that large.
_TOO_BIG = 2**63
_MANY_DIGITS = re.compile(rb"[0-9]{19}")
# Maximum nesting depth of lists and objects in a body.
_DEEPEST = 32
# Maximum number of characters of a field's name in an error message; the rest is cut off.
_SHOWN = 255
# Maximum number of parameters of a query.
_MOST_PARAMETERS = 500

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ProjectMismatch(exception.Invalid, template=(
        "Malformed request URL: URL's project_id '{url}' doesn't match Context's project_id '{own}'")): ...
class NoSuchAction(exception.Invalid, template="There is no such action: {name}"): ...


def create_app(bus_transport: Any = None, clients: Clients | None = None, limits: rates.Rates | None = None) -> Wsgi:
    """Return the API as a WSGI application. ``bus_transport``: a connection to the bus, or None to create it from the
    configuration at the first request that needs it (never before a fork). ``clients``: clients to use instead of RPC
    clients. ``limits``: rate limits of all workers, created before the fork; None: limits of this process alone."""
    clients = clients or Clients((lambda: bus_transport) if bus_transport is not None else lambda: bus.connect(CONF))
    limits = limits or rates.Rates()
    dispatcher = Dispatcher(clients, routes.table(), limits)
    return _with_cors(limits.by_address(auth.protect(instrumented(dispatcher.serve))))


def _with_cors(app: Wsgi) -> Wsgi:
    """Return ``app`` with the cross-origin headers that [cors] configures; unchanged if no origin is allowed."""
    if not CONF.cors.allowed_origin:
        return app
    from oslo_config import cfg
    from oslo_middleware import cors  # The import costs 5 MB of memory.

    options = cfg.ConfigOpts()
    options.register_opts(cors.CORS_OPTS, "cors")
    for name in CONF.cors:
        options.set_override(name, CONF.cors[name], "cors")
    wrapped: Wsgi = cors.CORS(app, options)
    return wrapped


class Dispatcher:
    """Finds the handler of a request and converts its result, or an error, to a response."""

    def __init__(self, clients: Clients, table: tuple[router.Route, ...], limits: rates.Rates) -> None:
        self._clients, self._limits, self._table = clients, limits, table
        self._router = router.Router(table)
        self._healthcheck = healthcheck.Healthcheck(lambda: bus.within(
            clients.services, healthcheck.PROBE_TIMEOUT).index(context.admin(), binary="nova-conductor"))

    def serve(self, environ: Environ, reply: Reply) -> None:
        """Fill in the response to a request. Never raises."""
        started = time.monotonic()
        level = logging.DEBUG
        path = "?"
        try:
            path = _path(environ)
            if path == PLACEMENT or path.startswith(f"{PLACEMENT}/"):
                level = logging.DEBUG if auth.is_public(path) else logging.INFO
                self._placement(environ, path, reply)
            elif not auth.is_public(path):
                level = logging.INFO
                (self._status if path == status_page.DATA else self._serve)(environ, path, reply)
            elif environ["REQUEST_METHOD"] == "OPTIONS":
                reply.headers["allow"] = healthcheck.ALLOWED
            elif path == healthcheck.PATH and environ["REQUEST_METHOD"] in ("GET", "HEAD"):
                reply.status, reply.content_type, reply.data = self._healthcheck.answer(environ)
            elif path in openapi.PATHS and environ["REQUEST_METHOD"] in ("GET", "HEAD"):
                _send(reply, 200, openapi.encoded(self._table, _version(environ), versions.host_url(environ)))
            elif CONF.api.status_page and path in status_page.FILES and environ["REQUEST_METHOD"] == "GET":
                status_page.show(path, reply)
            else:
                _send(reply, *versions.public(environ, path, versions.host_url(environ)))
        except UnicodeDecodeError:
            _unknown_url(environ, reply)
        except Exception as error:
            _send(reply, *errors.describe(error))
            reply.set_headers(errors.headers(error))
        LOG.log(level, "%s %s %s %.1f ms", environ["REQUEST_METHOD"], _loggable(path),
                reply.status, (time.monotonic() - started) * 1000)

    def _status(self, environ: Environ, _path: str, reply: Reply) -> None:
        ctx = auth.context_of(environ, None)
        reply.headers["x-openstack-request-id"] = ctx.request_id
        self._limits.count(ctx)
        if not CONF.api.status_page or environ["REQUEST_METHOD"] != "GET":
            _unknown_url(environ, reply)
            return
        reply.headers["cache-control"] = "no-store"
        _send(reply, 200, status_page.data(ctx, self._clients))

    def _placement(self, environ: Environ, path: str, reply: Reply) -> None:
        method = environ["REQUEST_METHOD"]

        def authenticate() -> context.RequestContext:
            ctx = auth.context_of(environ, None)
            reply.headers["x-openstack-request-id"] = ctx.request_id
            self._limits.count(ctx)
            return ctx

        def request(ctx: context.RequestContext, version: int) -> PlacementRequest:
            raw = _read_body(environ) if method in _WITH_BODY else b""
            kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
            if raw and kind != JSON:
                raise UnsupportedType(kind=kind)
            return PlacementRequest(ctx, self._clients.placement, versions.host_url(environ), version,
                                    environ.get("QUERY_STRING", ""), _parse(raw))

        answer, route = placement_app.respond(method, _segments(environ, path)[1:] or [""],
                                          environ.get("HTTP_OPENSTACK_API_VERSION"), authenticate, request)
        if route is not None:
            environ[ROUTE] = route
        reply.set_headers(answer.headers)
        _send(reply, answer.status, answer.body)

    def _serve(self, environ: Environ, path: str, reply: Reply) -> None:
        method = environ["REQUEST_METHOD"]
        segments = _segments(environ, path)
        legacy = _PREFIXES[segments.pop(0)]
        project = segments.pop(0) if len(segments) > 1 and router.PROJECT.fullmatch(segments[0]) else None
        ctx = auth.context_of(environ, project)
        for name in ("x-openstack-request-id", "x-compute-request-id"):
            reply.headers[name] = ctx.request_id
        self._limits.count(ctx)
        raw = _read_body(environ) if method in _WITH_BODY else b""
        match = self._router.find(method, segments)
        if match is None and segments[-1].endswith(".json"):
            match = self._router.find(method, [*segments[:-1], segments[-1].removesuffix(".json")])
        if match is None:
            _unknown_url(environ, reply)
            return
        request = Request(ctx, self._clients, versions.host_url(environ))
        request.legacy, request.project = legacy, project
        leaf, request.params = match
        if not legacy:
            request.version = _version(environ)
            shown = microversion.text(request.version)
            reply.set_headers({microversion.HEADER: f"{microversion.SERVICE} {shown}",
                               microversion.OLD_HEADER: shown, "vary": _VARY})
        if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() not in _TYPES:
            raise errors.UnsupportedContentType()
        _check_project(request)
        self._call(environ, leaf, request, raw, reply)

    @staticmethod
    def _call(environ: Environ, leaf: router.Leaf, request: Request, raw: bytes, reply: Reply) -> None:
        body = _parse(raw)
        action = _action(body) if leaf.has_actions else None
        if leaf.has_actions and action not in leaf.actions:
            raise NoSuchAction(name=action)
        route = leaf.pick(action, request.version)
        if route is None:
            raise errors.RouteNotFound()
        environ[ROUTE] = route
        request.query_string = environ.get("QUERY_STRING", "")
        for name in route.spec.headers:
            if (value := environ.get(f"HTTP_{name.upper().replace('-', '_')}")) is not None:
                request.headers[name] = value
        _check_query(route, request)
        _check_body(route, request, body)
        if route.policy is not None:
            request.authorize(route.policy)
        answer = route.handler(request)
        if isinstance(route.spec.answer, fields.Rendered):
            answer = route.spec.answer.render(answer, request)
        status = route.status(request.version)
        if isinstance(answer, Response):
            reply.set_headers(answer.headers)
            status = answer.status or status
            answer = answer.body
        _send(reply, status, answer)


def _loggable(path: str) -> str:
    """Replace the console token in a path by ***, because the token gives access to the console."""
    before, tokens, token = path.partition("/os-console-auth-tokens/")
    shown = f"{before}{tokens}***" if token else path
    return shown if shown.isprintable() else ascii(shown)


def _path(environ: Environ) -> str:
    """Return the path of a request as text, with NUL characters replaced. Raises UnicodeDecodeError."""
    path: str = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8")
    return path.replace("\0", "\ufffd")


def _segments(environ: Environ, path: str) -> list[str]:
    """Return the decoded segments of the path. An encoded slash is a character of its segment.

    ``path`` has encoded slashes as they are in the URL. Raises UnicodeDecodeError."""
    segments = path.split("/")
    raw = environ.get("REQUEST_URI", "").partition("?")[0].split("/")[-len(segments):]
    if "%2F" in path and len(raw) == len(segments):
        segments = [unquote(segment, errors="strict").replace("\0", "\ufffd") for segment in raw]
    return segments[1:]


def _version(environ: Environ) -> int:
    return microversion.requested(
        environ.get("HTTP_OPENSTACK_API_VERSION"), environ.get("HTTP_X_OPENSTACK_NOVA_API_VERSION"))


def _send(reply: Reply, status: int, body: Any) -> None:
    reply.status = status
    reply.content_type = JSON
    reply.data = b"" if body is None else _encode(body)


def _unknown_url(environ: Environ, reply: Reply) -> None:
    """Respond with 404 for an unknown URL. The body has no Compute API format, since the URL is outside of that API."""
    reply.status = 404
    if "json" in environ.get("HTTP_ACCEPT", ""):
        reply.content_type = JSON
        reply.data = _encode({"message": errors.MISSING_RESOURCE, "code": "404 Not Found", "title": "Not Found"})
    else:
        reply.content_type = "text/plain; charset=UTF-8"
        reply.data = f"404 Not Found\n\n{errors.MISSING_RESOURCE}\n".encode()


def _read_body(environ: Environ) -> bytes:
    """Return the body of a request. Raises BodyTooLarge above [oslo_middleware]max_request_body_size."""
    most: int = CONF.oslo_middleware.max_request_body_size
    length = environ.get("CONTENT_LENGTH")
    if length:
        try:
            size = int(length)
        except ValueError:
            raise errors.MalformedBody() from None
        if size > most:
            raise errors.BodyTooLarge()
        return _read(environ["wsgi.input"], size)
    if environ.get("HTTP_TRANSFER_ENCODING") or environ.get("wsgi.input_terminated"):
        body = _read(environ["wsgi.input"], most + 1)
        if len(body) > most:
            raise errors.BodyTooLarge()
        return body
    return b""


def _read(stream: Any, size: int) -> bytes:
    parts = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _parse(raw: bytes) -> Any:
    """Parse a body; return None for an empty one."""
    if not raw.strip():
        return None
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise errors.MalformedBody() from error
    # Check every value only if the body may contain a NUL, deep nesting or a large number. Few bodies do.
    if b"\\u0000" in raw or raw.count(b"[") + raw.count(b"{") > _DEEPEST or _MANY_DIGITS.search(raw):
        _check_values(body, "", 0)
    return body


def _check_values(value: Any, name: str, depth: int) -> None:
    """Raise Invalid for NUL characters, numbers above 64 bits and deep nesting. ``name``: the field of ``value``."""
    if isinstance(value, str):
        if "\0" in value:
            raise exception.Invalid("Invalid input: the request body contains a NUL character.")
    elif isinstance(value, int):
        if not -_TOO_BIG <= value < _TOO_BIG:
            raise exception.Invalid(f"Invalid input for {schema.BODY} {name[:_SHOWN]}. The number exceeds 64 bits.")
    elif depth > _DEEPEST:
        raise exception.Invalid(f"Invalid input for {schema.BODY} {name[:_SHOWN]}. The value is nested too deeply.")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_values(key, name, depth)
            _check_values(item, key, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_values(item, name, depth + 1)


def _action(body: Any) -> str:
    if not isinstance(body, dict) or len(body) != 1:
        raise errors.MalformedBody()
    return str(next(iter(body)))


def _check_project(request: Request) -> None:
    own = request.ctx.project_id
    if not own:
        # Policy rules need the caller's project. Unscoped, domain-scoped and system-scoped tokens have no project.
        raise exception.Forbidden("This operation requires a token of a project.")
    if request.project is not None and request.project != own:
        raise ProjectMismatch(url=request.project, own=own)


def _check_query(route: router.Route, request: Request) -> None:
    declared = route.query
    if declared is None or not request.query_string:
        return
    given: dict[str, list[str]] = {}
    if "%00" in request.query_string:
        raise exception.Invalid("Invalid input: the query string contains a NUL character.")
    if request.query_string.count("&") >= _MOST_PARAMETERS:
        raise exception.Invalid(f"The query has more than {_MOST_PARAMETERS} parameters.")
    try:
        for name, value in parse_qsl(request.query_string, keep_blank_values=True, errors="strict"):
            given.setdefault(name, []).append(value)
    except (UnicodeDecodeError, ValueError) as error:
        raise exception.Invalid("Query string is not UTF-8 encoded") from error
    version = microversion.LEGACY if request.legacy else request.version
    declared.validator(version).check(given, schema.QUERY)
    request.query = declared.existing(given, version)


def _check_body(route: router.Route, request: Request, body: Any) -> None:
    declared = route.spec.body
    if declared is None:
        request.body = body
        return
    version = request.version
    if request.legacy:
        version = microversion.LEGACY
        body = declared.clean(body)
    if body is None and not declared.takes_null(version):
        raise exception.Invalid(errors.MALFORMED)
    declared.validator(version).check(body)
    request.body = body
