"""Operations that were removed from the API: 410 in every version."""

from typing import Any

from nova.api import errors
from nova.api.request import Request
from nova.api.router import Route


def no_longer_available(_req: Request) -> Any:
    """Answer 410: the operation is no longer part of the API."""
    raise errors.NoLongerAvailable()


no_longer_available.removed = True  # type: ignore[attr-defined]  # the OpenAPI document leaves these out

_COLLECTIONS = (
    "/os-agents", "/os-cells", "/os-certificates", "/os-cloudpipe", "/os-fixed-ips", "/os-floating-ip-dns",
    "/os-floating-ips-bulk", "/os-fping", "/os-security-group-default-rules", "/servers/{server_id}/consoles")
_SINGLE = (
    ("GET", "/servers/{server_id}/os-virtual-interfaces"), ("POST", "/os-networks"), ("POST", "/os-networks/add"),
    ("DELETE", "/os-networks/{id}"), ("POST", "/os-networks/{id}/action"), ("POST", "/os-tenant-networks"),
    ("DELETE", "/os-tenant-networks/{id}"),
)
_METHODS = ("GET", "POST", "PUT", "DELETE")
_BELOW = ("", "/{id}", "/{id}/{what}", "/{id}/{what}/{name}")


def routes() -> tuple[Route, ...]:
    """Return the routes of these operations."""
    everywhere = [(method, path + below) for path in _COLLECTIONS for below in _BELOW for method in _METHODS]
    return tuple(Route(method, path, no_longer_available) for method, path in (*everywhere, *_SINGLE))
