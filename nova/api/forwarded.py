"""Headers of proxies about a request, accepted only from the addresses of [api]trusted_proxies."""

import functools
import re
from collections.abc import Callable

from nova import exception
from nova.conf import CONF
from nova.http.limits import among
from nova.http.messages import Environ
from nova.service.rates import client_of

# A name, an IPv4 address or an IPv6 address in brackets, optionally followed by a port.
_HOST = re.compile(r"([A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")


class BadHost(exception.Invalid, template="The header {name} is malformed."): ...


def base_url(environ: Environ) -> str:
    """Return scheme, host and prefix of the URL that the client used. Raises BadHost (400)."""
    scheme, host, name = environ["wsgi.url_scheme"], environ.get("HTTP_HOST"), "Host"
    said, forwarded = environ.get("HTTP_X_FORWARDED_PROTO"), environ.get("HTTP_X_FORWARDED_HOST")
    if (said or forwarded) and _trusted()(environ.get("REMOTE_ADDR", "")):
        if said and _last(said).lower() in ("http", "https"):
            scheme = _last(said).lower()
        if forwarded:
            host, name = _last(forwarded), "X-Forwarded-Host"
    if not host:
        host = f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
    elif not _HOST.fullmatch(host):
        raise BadHost(name=name)
    return f"{scheme}://{host}{environ.get('SCRIPT_NAME', '')}"


def client(environ: Environ) -> str | None:
    """Return the address of the client in the form of ``rates.client_of``. Behind trusted proxies it is the last
    address in X-Forwarded-For that is not a trusted proxy, or None if there is no such address."""
    address, trusted = environ.get("REMOTE_ADDR", ""), _trusted()
    if not trusted(address):
        return client_of(address)
    for entry in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").split(",")):
        if (forwarded := entry.strip()) and not trusted(forwarded):
            return client_of(forwarded)
    return None


def _trusted() -> Callable[[str], bool]:
    return _among(tuple(CONF.api.trusted_proxies))


_among = functools.lru_cache(4)(among)


def _last(values: str) -> str:
    """Return the last value of a header, which the nearest proxy added."""
    return values.rpartition(",")[2].strip()
