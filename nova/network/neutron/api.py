"""A client of Neutron's API (v2.0), used by conductors."""

import contextlib
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Required, TypedDict

import requests
from msgspec import Meta

from nova import context, exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.objects.base import is_canonical
from nova.service_clients import ServiceClient, Unreachable, decode_response

GROUP = "neutron"

Raw = dict[str, Any]

_ROUTERS, _QUOTA_DETAILS = "router", "quota_details"
_IDS_PER_QUERY = 100  # 5 KB in the URL
_MAX_PAGES = 10_000

# Exceptions by Neutron's error type, and by HTTP status for all other error types.
_BY_TYPE: dict[str, type[exception.NovaException]] = {
    **dict.fromkeys(("IpAddressAlreadyAllocated", "IpAddressInUse"), exception.FixedIpInUse),
    **dict.fromkeys(("IpAddressGenerationFailure", "ExternalIpAddressExhausted", "NoMoreIps"),
                    exception.NoMoreFixedIps),
    **dict.fromkeys(("InvalidIpForNetwork", "InvalidIpForSubnet"), exception.FixedIpInvalid),
    "OverQuota": exception.QuotaLimit}
_BY_STATUS = {404: exception.NotFound, 409: exception.Conflict, 413: exception.QuotaLimit}

_Id = Annotated[str, Meta(min_length=1, max_length=64)]
_Mac = Annotated[str, Meta(pattern=r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")]


class _FixedIp(TypedDict):
    subnet_id: _Id
    ip_address: Annotated[str, Meta(max_length=64)]


# Required fields of responses, and types of all fields that are read.
_Port = TypedDict("_Port", {
    "id": Required[_Id], "network_id": Required[_Id], "mac_address": Required[_Mac],
    "fixed_ips": Required[list[_FixedIp]], "tenant_id": Required[str], "device_id": str | None,
    "revision_number": int | None, "status": str | None, "admin_state_up": bool | None,
    "port_security_enabled": bool | None, "security_groups": list[_Id], "ip_allocation": str | None,
    "binding:vif_type": str | None, "binding:vnic_type": str | None, "binding:vif_details": dict[str, Any] | None,
    "binding:host_id": str | None, "device_owner": str | None,
    "binding:profile": dict[str, Any] | None, "dns_name": str | None, "resource_request": dict[str, Any] | None,
    "device_profile": str | None}, total=False)
_Network = TypedDict("_Network", {"id": Required[_Id], "name": str | None, "mtu": int | None, "subnets": list[_Id],
                                  "shared": bool | None, "router:external": bool | None, "dns_domain": str | None,
                                  "qos_policy_id": str | None, "provider:physical_network": str | None,
                                  "segments": list[dict[str, Any]] | None}, total=False)


class _Route(TypedDict):
    destination: Annotated[str, Meta(max_length=64)]
    nexthop: Annotated[str, Meta(max_length=64)]


class _Subnet(TypedDict, total=False):
    id: Required[_Id]
    cidr: str | None
    enable_dhcp: bool | None
    ipv6_address_mode: str | None
    gateway_ip: str | None
    dns_nameservers: list[str] | None
    host_routes: list[_Route] | None


class _Extension(TypedDict):
    alias: str


class _Binding(TypedDict):
    vif_type: str | None
    vif_details: dict[str, Any] | None


class _Topology(TypedDict):
    id: _Id


class _FloatingIp(TypedDict, total=False):
    id: Required[_Id]
    port_id: Required[str | None]
    floating_ip_address: Required[Annotated[str, Meta(max_length=64)]]
    floating_network_id: _Id
    fixed_ip_address: str | None
    tenant_id: str | None


class _QosRule(TypedDict):
    type: str


class _QosPolicy(TypedDict):
    rules: list[_QosRule]


class _Usage(TypedDict, total=False):
    limit: Required[int]
    used: Required[int]
    reserved: int


class _Quota(TypedDict, total=False):
    port: Required[_Usage]


class _Rule(TypedDict, total=False):
    id: Required[_Id]
    security_group_id: Required[_Id]
    direction: Required[str]
    ethertype: Required[str]
    protocol: str | None
    port_range_min: int | None
    port_range_max: int | None
    remote_ip_prefix: str | None
    remote_group_id: str | None


class _SecurityGroup(TypedDict, total=False):
    id: Required[_Id]
    name: Required[str]
    description: str | None
    tenant_id: str | None
    security_group_rules: list[_Rule] | None


_SHAPES: dict[str, Any] = {
    "port": _Port, "ports": list[_Port], "network": _Network, "networks": list[_Network], "subnets": list[_Subnet],
    "binding": _Binding, "auto_allocated_topology": _Topology, "floatingips": list[_FloatingIp],
    "floatingip": _FloatingIp,
    "quota": _Quota, "policy": _QosPolicy,
    "security_group": _SecurityGroup, "security_groups": list[_SecurityGroup], "security_group_rule": _Rule,
    "extensions": list[_Extension], "": dict[str, list[dict[str, Any]]]}  # "": the whole body of a list


class NeutronApi:
    """A client of Neutron that uses Nova's own credentials, or a caller's ``token``. All methods raise
    NetworkServiceUnavailable (the request may have been executed), Forbidden, NotFound, InvalidInput, Conflict,
    QuotaLimit, and the exceptions in their docstrings."""

    def __init__(self) -> None:
        self._neutron = ServiceClient(
            GROUP, {"service_type": "network", "interface": ["internal", "public"]}, ("/v2.0",))
        # The extensions of the service, and when they were requested (monotonic).
        self._extensions: tuple[frozenset[str], float] | None = None

    def has(self, ctx: RequestContext, extension: str) -> bool:
        """Return True if the service has the extension (an alias), cached for [neutron]extension_sync_interval."""
        cached, now = self._extensions, time.monotonic()
        if cached is None or now - cached[1] > CONF.neutron.extension_sync_interval:
            extensions = self.list(ctx, "extensions")
            cached = self._extensions = frozenset(extension["alias"] for extension in extensions), now
        return extension in cached[0]

    def list(self, ctx: RequestContext, kind: str, token: str | None = None, **query: Any) -> list[Raw]:
        """Return the rows of a kind (as in the path, for example security-groups) that match a query. The service may
        limit the number of rows in a response (its option pagination_max_limit). A query with a ``limit`` returns the
        first page only."""
        key = kind.replace("-", "_")
        links_key = f"{key}_links"
        rows: list[Raw] = []
        for _page in range(_MAX_PAGES):
            response = self._send(ctx, "GET", f"/{kind}", token, params=query)
            page = self._decode(response, key)
            rows += page
            # Nearly all lists have one page: their bodies are not parsed again.
            if not page or "limit" in query or f'"{links_key}"'.encode() not in response.content:
                return rows
            if all(link.get("rel") != "next" for link in self._decode(response, "").get(links_key, ())):
                return rows
            query["marker"] = page[-1].get("id")
        raise exception.NetworkServiceUnavailable(reason=f"its list of {kind} has more than {_MAX_PAGES} pages")

    def port(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Raw:
        """Return a port. Raises PortNotFound."""
        return self._get(ctx, "port", uuid, token, exception.PortNotFound(port_id=uuid))

    def network(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Raw:
        """Return a network. Raises NetworkNotFound."""
        return self._get(ctx, "network", uuid, token, exception.NetworkNotFound(network_id=uuid))

    def _get(self, ctx: RequestContext, kind: str, uuid: str, token: str | None, missing: exception.NotFound) -> Raw:
        """Return a port or network. Raises ``missing`` also if the id differs in case, which MySQL ignores: Nova would
        take a port with another id than requested for its own and delete it with the server. An id from a user may be
        any text, for example a path."""
        if not is_canonical(uuid):
            raise missing
        try:
            row: Raw = self._request(ctx, "GET", f"/{kind}s/{uuid}", kind, token)
        except exception.NotFound as error:
            raise missing from error
        if row["id"] != uuid:
            raise missing
        return row

    def floating_addresses(self, ctx: RequestContext, ports: Sequence[str]) -> dict[str, str]:
        """Return the floating IP addresses of ports, by port; none if the service lacks the extension for routers."""
        rows = self._list_by(ctx, "floatingips", "port_id", ports) if ports and self.has(ctx, _ROUTERS) else []
        # A port with several fixed addresses may have several floating addresses: always return the same of them.
        return {row["port_id"]: row["floating_ip_address"] for row in
                sorted(rows, key=lambda row: str(row["floating_ip_address"]), reverse=True)}

    def ports_by_id(self, ctx: RequestContext, ports: Sequence[str]) -> dict[str, Raw]:
        """Return the existing ports with these ids, by id."""
        return {port["id"]: port for port in self._list_by(ctx, "ports", "id", ports)}

    def _list_by(self, ctx: RequestContext, kind: str, field: str, values: Sequence[str]) -> Sequence[Raw]:
        return [row for first in range(0, len(values), _IDS_PER_QUERY)
                for row in self.list(ctx, kind, None, **{field: values[first:first + _IDS_PER_QUERY]})]

    def usable_networks(self, ctx: RequestContext, project_id: str) -> Sequence[Raw]:
        """Return the networks of a project and the shared ones, with the rights of the caller."""
        networks = [*self.list(ctx, "networks", ctx.auth_token, tenant_id=project_id, shared=False),
                    *self.list(ctx, "networks", ctx.auth_token, shared=True)]
        return list({network["id"]: network for network in networks}.values())

    def guarantees(self, ctx: RequestContext, network_id: str) -> bool:
        """Return True if ports of a network get a minimum bandwidth or packet rate, which Nova would have to claim."""
        network = self.network(ctx, network_id)
        if not network.get("qos_policy_id"):
            return False
        policy = self._request(ctx, "GET", f"/qos/policies/{network['qos_policy_id']}", "policy")
        kinds = {rule["type"] for rule in policy["rules"]}
        has_hardware = bool(network.get("provider:physical_network") or network.get("segments"))
        return "minimum_packet_rate" in kinds or ("minimum_bandwidth" in kinds and has_hardware)

    def free_ports(self, ctx: RequestContext, project_id: str) -> int | None:
        """Return the number of ports that the quota of a project permits in addition to the present ones, or None for
        no limit. Without the extension quota_details the service checks the quota when a port is created."""
        if not self.has(ctx, _QUOTA_DETAILS):
            return None
        usage = self._request(ctx, "GET", f"/quotas/{urllib.parse.quote(project_id, safe='')}/details", "quota")["port"]
        if usage["limit"] < 0:
            return None
        return max(0, int(usage["limit"] - usage["used"] - usage.get("reserved", 0)))

    def create_port(self, ctx: RequestContext, wanted: Raw) -> Raw:
        """Create a port and return it. Raises FixedIpInUse, NoMoreFixedIps, QuotaLimit."""
        return self._request(ctx, "POST", "/ports", "port", json={"port": wanted})  # type: ignore[no-any-return]

    def update_port(self, ctx: RequestContext, uuid: str, changes: Raw, revision: int | None = None,
                    token: str | None = None) -> Raw:
        """Update a port and return it. ``revision``: the expected revision of the port. Raises PortNotFound, PortInUse
        (the port has another revision)."""
        headers = {"If-Match": f"revision_number={revision}"} if revision is not None else {}
        try:
            return self._request(ctx, "PUT", f"/ports/{uuid}", "port", token, headers,  # type: ignore[no-any-return]
                                 json={"port": changes})
        except exception.NotFound as error:
            raise exception.PortNotFound(port_id=uuid) from error
        except _RevisionMismatch as error:
            raise exception.PortInUse(port_id=uuid) from error

    def delete_port(self, ctx: RequestContext, uuid: str) -> None:
        """Delete a port. Succeeds if the port does not exist."""
        with contextlib.suppress(exception.NotFound):
            self._request(ctx, "DELETE", f"/ports/{uuid}")

    def create_topology(self, ctx: RequestContext, project_id: str) -> str:
        """Create a network, a subnet and a router to the default external network for a project, unless it has them
        (extension auto-allocated-topology). Return the id of the network. Raises UnableToAutoAllocateNetwork."""
        try:
            topology = self._request(ctx, "GET", f"/auto-allocated-topology/{project_id}", "auto_allocated_topology",
                                     ctx.auth_token)
        except (exception.NotFound, exception.Invalid, exception.Conflict, exception.Forbidden) as error:
            raise exception.UnableToAutoAllocateNetwork(project_id=project_id) from error
        return str(topology["id"])

    def as_caller(self, ctx: RequestContext, method: str, kind: str, missing: exception.NotFound, uuid: str = "",
                  body: Raw | None = None) -> Raw:
        """Create, get, update or delete a row of this kind (security_group, security_group_rule or floatingip) with the
        caller's token. Raises ``missing``."""
        if method != "GET" and context.too_late():  # earlier slow requests have used up the time of the caller
            raise exception.NetworkServiceUnavailable(reason="the request has timed out: nothing was changed")
        path = f"/{kind.replace('_', '-')}s{'/' if uuid else ''}{uuid}"
        more: dict[str, Any] = {"json": {kind: body}} if body is not None else {}
        try:  # waits=True limits the number of threads that wait for a service that does not respond
            return self._request(  # type: ignore[no-any-return]
                ctx, method, path, "" if method == "DELETE" else kind, ctx.auth_token, waits=True, **more)
        except exception.NotFound as error:
            raise missing from error

    # --- bindings to further hosts (extension binding-extended) ----------------------------------------
    def create_binding(self, ctx: RequestContext, port: str, wanted: Raw) -> Raw:
        """Create an inactive binding of a port, or get the one that exists, and return it. Raises PortNotFound,
        PortBindingFailed (the service responds with status 500 if it cannot bind the port to the host)."""
        try:
            return self._request(ctx, "POST", f"/ports/{port}/bindings", "binding",  # type: ignore[no-any-return]
                                 json={"binding": wanted})
        except exception.NotFound as error:
            raise exception.PortNotFound(port_id=port) from error
        except exception.Conflict:
            return self._request(ctx, "GET", self._binding(port, wanted["host"]), "binding")  # type: ignore[no-any-return]
        except _InternalError as error:
            raise exception.PortBindingFailed(port_id=port) from error

    def activate_binding(self, ctx: RequestContext, port: str, host: str) -> None:
        """Activate the binding of a port to this host; the active one becomes inactive. Succeeds if the binding is
        active or does not exist."""
        with contextlib.suppress(exception.NotFound, exception.Conflict):
            self._request(ctx, "PUT", f"{self._binding(port, host)}/activate")

    def delete_binding(self, ctx: RequestContext, port: str, host: str) -> None:
        """Delete the binding of a port to this host. Succeeds if it does not exist."""
        with contextlib.suppress(exception.NotFound):
            self._request(ctx, "DELETE", self._binding(port, host))

    @staticmethod
    def _binding(port: str, host: str) -> str:
        return f"/ports/{port}/bindings/{urllib.parse.quote(host, safe='')}"

    def _request(self, ctx: RequestContext, method: str, path: str, key: str = "", token: str | None = None,
                 headers: Mapping[str, str] | None = None, **more: Any) -> Any:
        """Send a request and return the value under ``key`` of the response, checked against its shape."""
        response = self._send(ctx, method, path, token, headers, **more)
        return self._decode(response, key) if key else None

    def _send(self, ctx: RequestContext, method: str, path: str, token: str | None,
              headers: Mapping[str, str] | None = None, **more: Any) -> requests.Response:
        retries = CONF.neutron.http_retries if method == "GET" else 0
        try:
            response = self._neutron.request(ctx, method, f"/v2.0{path}", token, dict(headers or {}),
                                             connect_retries=retries, **more)
        except Unreachable as error:
            raise exception.NetworkServiceUnavailable(reason=str(error)) from error
        _check(response, bool(token))
        return response

    @staticmethod
    def _decode(response: requests.Response, key: str) -> Any:
        try:
            return decode_response(response, _SHAPES[key], key)
        except Unreachable as error:
            raise exception.NetworkServiceUnavailable(reason=str(error)) from error


class NotAllowed(exception.NetworkServiceUnavailable):
    """The account of [neutron] lacks the right for a request."""


class _InternalError(exception.NetworkServiceUnavailable):
    """The service responded with status 500."""


class _RevisionMismatch(exception.NetworkServiceUnavailable):
    """The port has another revision than expected."""


def _check(response: requests.Response, user: bool) -> None:
    """Raise the exception for an error response. ``user``: True if the request had a caller's token."""
    status = response.status_code
    if status < 300:
        return
    kind, message = _fault(response)
    if status == 412:
        raise _RevisionMismatch(reason=message)
    error = (_BY_TYPE.get(kind) if status != 404 else None) or _BY_STATUS.get(status)
    if error is not None:
        raise error(message)
    if status == 400:
        raise exception.InvalidInput(reason=message)
    if user and status in (401, 403):
        raise exception.Forbidden(message)
    if status == 403:
        raise NotAllowed(reason=f"it refused a request of Nova's own account: {message}")
    kind_of_error = _InternalError if status == 500 else exception.NetworkServiceUnavailable
    raise kind_of_error(reason=f"the service responded with status {status}")


def _fault(response: requests.Response) -> tuple[str, str]:
    """Return type and message of {"NeutronError": {"type": ..., "message": ..., "detail": ...}}."""
    try:
        fault = response.json()["NeutronError"]
        return str(fault["type"]), str(fault["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", f"the network service responded with status {response.status_code}"
