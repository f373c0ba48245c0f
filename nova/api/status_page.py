"""The status page: a static file, and the data that the page requests with the operator's token."""

import functools
import importlib.resources

from nova import policies
from nova.api.clients import Clients
from nova.api.reply import Reply
from nova.context import RequestContext
from nova.objects.hosts.overview import Overview

DATA = "/status.json"
# path: (file, media type)
FILES = {"/status": ("status.html", "text/html; charset=utf-8"), "/status.js": ("status.js", "text/javascript"),
         "/status.css": ("status.css", "text/css")}
POLICY = "nova:status"

# Maximum number of nodes, of operations and of failures on the page.
_MOST = 100
# Seconds for which the data are cached for all clients: many open pages cause no more calls of the conductor than one.
_FRESH = 1.0
# Tenants choose the names on the page: even if one contains HTML, the page loads no external content.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


def show(path: str, reply: Reply) -> None:
    """Fill in the response with a file of the page (FILES)."""
    name, reply.content_type = FILES[path]
    reply.data = _content(name)
    reply.set_headers(_HEADERS)


@functools.cache
def _content(name: str) -> bytes:
    return importlib.resources.files("nova.api").joinpath("static", name).read_bytes()


def data(ctx: RequestContext, clients: Clients) -> Overview:
    """Return the content of the page. Raises PolicyNotAuthorized."""
    policies.authorize(ctx, POLICY)
    overview: Overview = clients.cached("overview", _FRESH, lambda: clients.overviews.get(ctx, _MOST))
    return overview
