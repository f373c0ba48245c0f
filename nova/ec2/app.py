"""The WSGI application of the EC2 API."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.ec2 import accounts, images, instances, networks, parameters, render, volumes
from nova.ec2.actions import Action, Call
from nova.ec2.credentials import Authenticator
from nova.ec2.errors import Ec2Error, unavailable, unsupported
from nova.ec2.ids import Ids
from nova.ec2.rest import OLD, Connection, Rest
from nova.http import messages
from nova.http.messages import Environ
from nova.rpcapi.accounts import Ec2Ids

LOG = logging.getLogger(__name__)

ACTIONS: dict[str, Action] = {action.name: action for module in (
    instances, images, volumes, networks, accounts) for action in module.ACTIONS}
NEWEST = "2016-11-15"
# Maximum size in bytes of the body of a request, and of its request line and headers.
MOST_BODY, MOST_HEADER = 128 * 1024, 48 * 1024
_VERSION = re.compile("20[0-9]{2}-[0-9]{2}-[0-9]{2}")
_LOGGED = "nova.ec2.action"  # key of the action's name in the environment
_ACTION = re.compile("[A-Za-z0-9]{1,64}")
_FORM = "application/x-www-form-urlencoded"
# Kind of id -> path, key and type of paging of the REST list of all objects that a caller sees.
_LISTS = {"ami": ("/images", "images", "marker"), "vol": ("/os-volumes", "volumes", "offset"),
          "snap": ("/os-snapshots", "snapshots", "offset"),
          "sg": ("/os-security-groups", "security_groups", "offset"),
          "eipalloc": ("/os-floating-ips", "floating_ips", "")}


class Application:
    """Serves EC2 requests with the REST API at ``url``. ``conductor``: the RPC client for the table of EC2 ids."""

    def __init__(self, conductor: Ec2Ids, url: str, threads: int) -> None:
        self._conductor, self._connection = conductor, Connection(url, threads)
        self._authenticator = Authenticator()

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        started = time.monotonic()
        ctx = RequestContext(overwrite=True, roles=[])
        status = 200
        try:
            body = self._answer(ctx, environ)
        except Ec2Error as error:
            status, body = error.status, render.failure(error, ctx.request_id)
        except exception.ServiceUnavailable as error:
            LOG.warning("No conductor responded, the EC2 request fails (503): %s", error)
            status, body = 503, render.failure(unavailable("The compute service is unavailable."), ctx.request_id)
        except Exception:
            LOG.exception("Unexpected error in the EC2 API, the request fails")
            status = 500
            body = render.failure(Ec2Error("InternalError", "An internal error has occurred."), ctx.request_id)
        LOG.info("%s %s %s %.1f ms", environ["REQUEST_METHOD"], environ.get(_LOGGED, "?"), status,
                 (time.monotonic() - started) * 1000)
        start_response(f"{status} {_PHRASES.get(status) or messages.PHRASES.get(status, 'Error')}", [
            ("Content-Type", render.TYPE), ("x-openstack-request-id", ctx.request_id)])
        return [body]

    def _answer(self, ctx: RequestContext, environ: Environ) -> bytes:
        given, body = _parameters(environ)
        version = given.get("Version", NEWEST)
        if not _VERSION.fullmatch(version) or version > NEWEST:
            raise Ec2Error("NoSuchVersion", f"Versions up to {NEWEST} are supported.")
        name = given.get("Action", "")
        if not name:
            raise Ec2Error("MissingAction", "The request has no parameter Action.")
        if not _ACTION.fullmatch(name):
            raise Ec2Error("InvalidAction", "The parameter Action is malformed.")
        environ[_LOGGED] = name
        caller = self._authenticator.caller_of(ctx, environ, given, body)
        ctx.project_id = caller.project_id
        action = ACTIONS.get(name)
        if action is None:
            raise unsupported(f"The action {name} is not supported.")
        args = action.struct.read(parameters.tree_of(given))
        rest = Rest(self._connection, ctx, caller, environ.get("REMOTE_ADDR", ""))
        call = Call(ctx, caller, rest, self._ids(ctx, rest), args, _url(environ))
        return render.answer(name, version, ctx.request_id, action.run(call))

    def _ids(self, ctx: RequestContext, rest: Rest) -> Ids:
        def lister(path: str, key: str, paged: str) -> Any:
            return lambda: [item["id"] for item in rest.list(path, key, OLD, paged)]

        return Ids(self._conductor, ctx, {kind: lister(*listed) for kind, listed in _LISTS.items()})


def error_body(status: int, message: str, _retry_after: int | None = None) -> dict[str, Any]:
    """Return the body of a response to a request that is not valid HTTP."""
    return {"error": {"code": status, "message": message}}


_PHRASES = {200: "OK", 401: "Unauthorized", 403: "Forbidden", 412: "Precondition Failed"}


def _parameters(environ: Environ) -> tuple[dict[str, str], bytes]:
    """Return the parameters and the body of a request. Raises Ec2Error."""
    method = environ["REQUEST_METHOD"]
    if method not in ("GET", "POST"):
        raise Ec2Error("InvalidRequest", "Only GET and POST are supported.", 405)
    body = b""
    if method == "POST":
        size = int(environ.get("CONTENT_LENGTH") or 0)
        if size > MOST_BODY:
            raise Ec2Error("RequestEntityTooLarge", f"The request has more than {MOST_BODY} bytes.", 413)
        body = environ["wsgi.input"].read(size)
        kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        if body and kind != _FORM:
            raise Ec2Error("InvalidRequest", f"The Content-Type of a request must be {_FORM}.", 415)
    try:
        text = body.decode("ascii")
    except UnicodeDecodeError as error:
        raise Ec2Error("MalformedQueryString", "The parameters are not URL-encoded UTF-8.") from error
    return parameters.flat(environ.get("QUERY_STRING", ""), text), body


def _url(environ: Environ) -> str:
    return CONF.ec2.public_url or f"{environ['wsgi.url_scheme']}://{environ.get('HTTP_HOST', '')}"
