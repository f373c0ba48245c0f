"""Who may come in: the token of a request, and the web page that it comes from."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from nova import bus, context, exception
from nova.objects.console import Console, digest
from nova.rpcapi.compute import Compute
from nova.rpcapi.consoles import Consoles

# Seconds in which a conductor, and then the host of the guest, have to answer.
_PATIENCE = 8.0
# What a page's scheme may be where the URL of the console has this one.
_SCHEMES = {"ws": ("ws", "http"), "wss": ("wss", "https"), "http": ("http",), "https": ("https",)}


class Refused(Exception):
    """The message is for whoever asked: it tells nothing of servers or hosts."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What counts of a request's head: ``path`` with its query, and some headers by their small names."""

    path: str
    headers: Mapping[str, str]

    @property
    def token(self) -> str:
        """As the query has it, else a cookie. Raises Refused when it cannot be one."""
        found = parse_qs(self.path.partition("?")[2]).get("token", [])
        token = found[0] if len(found) == 1 else "" if found else self._cookie()
        try:
            if str(uuid.UUID(token)) == token:
                return token
        except ValueError:
            pass
        raise Refused("The token is not valid.")

    def _cookie(self) -> str:
        try:
            morsel = SimpleCookie(self.headers.get("cookie", "")).get("token")
        except CookieError:
            return ""
        return morsel.value if morsel is not None else ""


def check_origin(asked: Asked, allowed: Collection[str], url: str) -> None:
    """Whether the web page that connects may do so: one of our own, or of the ``allowed`` hosts, by the scheme of the
    console's ``url``. What is no browser has no page. Raises Refused."""
    origin = asked.headers.get("origin")
    if origin is None:
        return
    try:
        page, own = urlsplit(origin), urlsplit("//" + asked.headers.get("host", ""))
        names = {own.hostname, *(name.lower() for name in allowed)} - {None}
    except ValueError:
        raise Refused("The origin cannot be read.") from None
    scheme = asked.headers.get("x-forwarded-proto", page.scheme)
    if page.hostname not in names or scheme not in _SCHEMES.get(urlsplit(url).scheme, ()):
        raise Refused("Pages of this origin may not connect.")


class Gate:
    """Asks who knows: the conductor about the token, the host about the console. For threads that may wait."""

    def __init__(self, consoles: Consoles, compute: Compute, types: Collection[str]) -> None:
        self._consoles = bus.within(consoles, _PATIENCE)
        self._compute = bus.within(compute, _PATIENCE)
        self._types = types

    def admit(self, token: str) -> Console:
        """What the token leads to now. Raises Refused, ServiceUnavailable."""
        ctx = context.admin()
        try:
            console = self._consoles.get(ctx, digest(token))
            if console.console_type not in self._types:
                raise Refused("The token is not valid.")
            # The port may be another guest's by now.
            address = bus.at(self._compute, console.instance_host).console(
                ctx, console.instance_uuid, console.console_type)
        except exception.ServiceUnavailable:
            raise
        except exception.NovaException as error:
            raise Refused("The token is not valid.") from error
        if address != console.address:
            raise Refused("The token is not valid.")
        return console


Admit = Callable[[str], Console]
