"""Routes of the operations that OpenStack removed. They return 410 in every version. The option [api]legacy enables
os-certificates and the operations on embedded networks again."""

import functools
from typing import Any

from nova.api import errors
from nova.api.legacy import certificates, fixed_ips, floating_ips, networks
from nova.api.request import Request
from nova.api.router import Route
from nova.conf import CONF


def no_longer_available(_req: Request) -> Any:
    """Answer 410: the operation is no longer part of the API."""
    raise errors.NoLongerAvailable()


no_longer_available.removed = True  # type: ignore[attr-defined]  # the OpenAPI document omits such operations

_COLLECTIONS = (
    "/os-agents", "/os-cells", "/os-certificates", "/os-cloudpipe", "/os-fixed-ips", "/os-floating-ip-dns",
    "/os-floating-ips-bulk", "/os-fping", "/os-security-group-default-rules", "/servers/{server_id}/consoles")
_BELOW = ("", "/{id}", "/{id}/{what}", "/{id}/{what}/{name}")
REMOVED: tuple[Route, ...] = tuple(Route(method, path, no_longer_available) for method, path in (
    *((method, path + below) for path in _COLLECTIONS for below in _BELOW
      for method in ("GET", "POST", "PUT", "DELETE")),
    ("GET", "/servers/{server_id}/os-virtual-interfaces"), ("POST", "/os-networks"), ("POST", "/os-networks/add"),
    ("DELETE", "/os-networks/{id}"), ("POST", "/os-networks/{id}/action"), ("POST", "/os-tenant-networks"),
    ("DELETE", "/os-tenant-networks/{id}")))

# -- operations that [api]legacy enables --------------------------------------------------------------------
_LAST = 35
_NETWORKS = "os_compute_api:os-networks:"
_ASSOCIATE = "os_compute_api:os-networks-associate:"
_TENANT = "os_compute_api:os-tenant-networks:"
_FIXED = "os_compute_api:os-fixed-ips:"
_BULK = "os_compute_api:os-floating-ips-bulk:"
_DNS = "os_compute_api:os-floating-ip-dns:"
_CERTIFICATES = "os_compute_api:os-certificates:"
_RULES = "os_compute_api:os-security-group-default-rules:"
_NETWORK = "/os-networks/{id}"
_ADDRESS = "/os-fixed-ips/{id}/action"
_DOMAIN = "/os-floating-ip-dns/{domain}"
_ENTRY = f"{_DOMAIN}/entries/{{name}}"
_RULE = "/os-security-group-default-rules/{id}"

_OF_ALL_NETWORKS: tuple[Route, ...] = (
    Route("POST", "/os-certificates", certificates.create, _CERTIFICATES + "create", until=_LAST),
    Route("GET", "/os-certificates/{id}", certificates.show, _CERTIFICATES + "show", until=_LAST))
SERVED: tuple[Route, ...] = (
    *_OF_ALL_NETWORKS,
    Route("POST", "/os-networks", networks.create, _NETWORKS + "create", until=_LAST),
    Route("POST", "/os-networks/add", networks.add, _NETWORKS + "add", until=_LAST, success=202),
    Route("DELETE", _NETWORK, networks.delete, _NETWORKS + "delete", until=_LAST, success=202),
    Route("POST", f"{_NETWORK}/action", networks.disassociate, _NETWORKS + "disassociate", until=_LAST, success=202,
          action="disassociate"),
    Route("POST", f"{_NETWORK}/action", networks.disassociate_host, _ASSOCIATE + "disassociate_host", until=_LAST,
          success=202, action="disassociate_host"),
    Route("POST", f"{_NETWORK}/action", networks.disassociate_project, _ASSOCIATE + "disassociate_project",
          until=_LAST, success=202, action="disassociate_project"),
    Route("POST", f"{_NETWORK}/action", networks.associate_host, _ASSOCIATE + "associate_host", until=_LAST,
          success=202, action="associate_host"),
    Route("POST", "/os-tenant-networks", networks.tenant_create, _TENANT + "create", until=_LAST),
    Route("DELETE", "/os-tenant-networks/{id}", networks.tenant_delete, _TENANT + "delete", until=_LAST, success=202),
    Route("GET", "/os-fixed-ips/{id}", fixed_ips.show, _FIXED + "show", until=_LAST),
    Route("POST", _ADDRESS, fixed_ips.reserve, _FIXED + "reserve", until=_LAST, success=202, action="reserve"),
    Route("POST", _ADDRESS, fixed_ips.unreserve, _FIXED + "unreserve", until=_LAST, success=202, action="unreserve"),
    Route("GET", "/os-floating-ips-bulk", floating_ips.index, _BULK + "list", until=_LAST),
    Route("POST", "/os-floating-ips-bulk", floating_ips.create, _BULK + "create", until=_LAST),
    Route("GET", "/os-floating-ips-bulk/{id}", floating_ips.show, _BULK + "show", until=_LAST),
    Route("PUT", "/os-floating-ips-bulk/{id}", floating_ips.delete, _BULK + "delete", until=_LAST),
    Route("GET", "/os-floating-ip-dns", floating_ips.domains, _DNS + "list", until=_LAST),
    Route("PUT", _DOMAIN, floating_ips.put_domain, _DNS + "domain:update", until=_LAST),
    Route("DELETE", _DOMAIN, floating_ips.delete_domain, _DNS + "domain:delete", until=_LAST, success=202),
    Route("GET", _ENTRY, floating_ips.show_entry, _DNS + "show", until=_LAST),
    Route("PUT", _ENTRY, floating_ips.put_entry, _DNS + "update", until=_LAST),
    Route("DELETE", _ENTRY, floating_ips.delete_entry, _DNS + "delete", until=_LAST, success=202),
    Route("GET", "/os-security-group-default-rules", networks.rules, _RULES + "list", until=_LAST),
    Route("POST", "/os-security-group-default-rules", networks.create_rule, _RULES + "create", until=_LAST),
    Route("GET", _RULE, networks.show_rule, _RULES + "show", until=_LAST),
    Route("DELETE", _RULE, networks.delete_rule, _RULES + "delete", until=_LAST, success=204),
    Route("GET", "/servers/{server_id}/os-virtual-interfaces", fixed_ips.virtual_interfaces, until=43))


def served() -> tuple[Route, ...]:
    """Return the routes that [api]legacy enables. Operations on networks require the embedded networks."""
    if not CONF.api.legacy:
        return ()
    return _OF_ALL_NETWORKS if CONF.network.driver == "neutron" else SERVED


@functools.cache
def added_to(table: tuple[Route, ...], added: tuple[Route, ...] = SERVED) -> tuple[Route, ...]:
    """Return the table with the legacy routes instead of the routes that answer 410 at the same URLs."""
    again = {route.path if route.path.startswith("/servers") else f"/{route.path.split('/')[1]}" for route in added}
    return (*(route for route in table
              if route.handler is not no_longer_available
              or again.isdisjoint({route.path, f"/{route.path.split('/')[1]}"})), *added)
