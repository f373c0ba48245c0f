"""Authorization of console connections by the token of the request and the origin of the web page."""

import dataclasses
import uuid
from collections.abc import Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from nova import bus, context, exception
from nova.objects.servers.console import Console, digest
from nova.rpcapi.compute import Compute
from nova.rpcapi.servers import Consoles

_RPC_TIMEOUT = 8.0  # timeout in seconds of the RPC call to the conductor, and of the call to the host of the guest
# Scheme of the console's URL -> allowed schemes of the web page.
_SCHEMES = {"ws": ("ws", "http"), "wss": ("wss", "https"), "http": ("http",), "https": ("https",)}


class ConnectionDenied(Exception):
    """A connection that is not authorized. The message is sent to the client, so it names no server or host."""


@dataclasses.dataclass(frozen=True)
class ConnectionRequest:
    """The request line and headers of a WebSocket handshake. ``path`` includes the query; the names in ``headers`` are
    lower-case."""

    path: str
    headers: Mapping[str, str]

    @property
    def token(self) -> str:
        """Return the token of the query, or else of the cookie. Raises ConnectionDenied if it is malformed."""
        tokens = parse_qs(self.path.partition("?")[2]).get("token", [])
        token = tokens[0] if len(tokens) == 1 else "" if tokens else self._cookie()
        try:
            if str(uuid.UUID(token)) == token:
                return token
        except ValueError:
            pass
        raise ConnectionDenied("The token is not valid.")

    def _cookie(self) -> str:
        try:
            morsel = SimpleCookie(self.headers.get("cookie", "")).get("token")
        except CookieError:
            return ""
        return morsel.value if morsel is not None else ""


def check_origin(request: ConnectionRequest, allowed: Collection[str], url: str) -> None:
    """Raise ConnectionDenied unless the web page that connects is from this proxy or from an ``allowed`` host. Its
    scheme must match that of the console's ``url``. Clients that are not browsers send no origin and may connect."""
    origin = request.headers.get("origin")
    if origin is None:
        return
    try:
        page, own = urlsplit(origin), urlsplit("//" + request.headers.get("host", ""))
        names = {own.hostname, *(name.lower() for name in allowed)} - {None}
    except ValueError:
        raise ConnectionDenied("The origin is malformed.") from None
    scheme = request.headers.get("x-forwarded-proto", page.scheme)
    if page.hostname not in names or scheme not in _SCHEMES.get(urlsplit(url).scheme, ()):
        raise ConnectionDenied("Web pages of this origin may not connect.")


class TokenAuthorizer:
    """Checks tokens by RPC calls to the conductor and to the host of the console. The calls block."""

    def __init__(self, consoles: Consoles, compute: Compute, types: Collection[str]) -> None:
        self._consoles = bus.within(consoles, _RPC_TIMEOUT)
        self._compute = bus.within(compute, _RPC_TIMEOUT)
        self._types = types

    def authorize(self, token: str) -> Console:
        """Return the console of the token. Raises ConnectionDenied, ServiceUnavailable."""
        ctx = context.admin()
        try:
            console = self._consoles.get(ctx, digest(token))
            if console.console_type not in self._types:
                raise ConnectionDenied("The token is not valid.")
            # The host confirms the address: the port may meanwhile belong to another guest.
            address = bus.at(self._compute, console.instance_host).console(
                ctx, console.instance_uuid, console.console_type)
        except exception.ServiceUnavailable:
            raise
        except exception.NovaException as error:
            raise ConnectionDenied("The token is not valid.") from error
        if address != console.address:
            raise ConnectionDenied("The token is not valid.")
        return console

