"""os-hypervisors: the compute nodes."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from nova import exception
from nova.api.compute.hosts.services import STATE, STATUS, check_uuid, state_of, status_of
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation import formats
from nova.api.validation.fields import ABSENT, Array, Changing, Field, Object, Out, Plain, Query, View, listed, single
from nova.api.validation.types import ANY_QUERY, BOOLEAN, HOSTNAME, INTEGER, LIMIT, LINKS, STRING, STRING_OR_NULL, UUID
from nova.conf import CONF
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU, ComputeNode
from nova.objects.servers.instance import Instance

# Servers of each host, or None if they were not requested.
Servers = dict[str, list[Instance]] | None

_WITH_SERVERS = Field(BOOLEAN, since=53, single=53)
INDEX_QUERY = Query({
    "limit": Field(LIMIT, since=33, single=53), "marker": Field(STRING, since=33, single=53),
    "hypervisor_hostname_pattern": Field(HOSTNAME, since=53, single=53), "with_servers": _WITH_SERVERS,
}, strict=53)


class Shown(NamedTuple):
    """A node, and the servers of all shown hosts."""

    node: ComputeNode
    servers: Servers = None


def _servers(shown: Shown, req: Request) -> Any:
    if shown.servers is None:
        return ABSENT
    servers = [{"name": server.name_by(CONF.instance_name_template), "uuid": server.uuid}
               for server in shown.servers.get(shown.node.host, [])]
    # Before 2.75 the response omits an empty list of servers.
    return servers if servers or req.version >= 75 else ABSENT


def _service(shown: Shown, req: Request) -> dict[str, Any]:
    node, service = shown.node, shown.node.service
    if service is None:
        return {"host": node.host, "id": node.service_id, "disabled_reason": None}
    return {"host": service.host, "id": service.uuid if req.version >= 53 else service.id,
            "disabled_reason": service.disabled_reason}


def _used(node: ComputeNode, resource_class: str) -> int:
    """Return the amount that is claimed by servers or reserved for the host."""
    inventory = node.inventory(resource_class)
    return inventory.used + inventory.reserved


# Resources of a node: shown until 2.87, and summed up in the statistics.
RESOURCES: dict[str, Any] = {
    "vcpus": lambda node: node.inventory(VCPU).total, "memory_mb": lambda node: node.inventory(MEMORY_MB).total,
    "local_gb": lambda node: node.inventory(DISK_GB).total, "vcpus_used": lambda node: _used(node, VCPU),
    "memory_mb_used": lambda node: _used(node, MEMORY_MB), "local_gb_used": lambda node: _used(node, DISK_GB),
    "free_ram_mb": lambda node: node.inventory(MEMORY_MB).total - _used(node, MEMORY_MB),
    "free_disk_gb": lambda node: node.inventory(DISK_GB).total - _used(node, DISK_GB),
    "current_workload": lambda node: node.num_io_ops, "running_vms": lambda node: node.num_instances}


def _resource(name: str) -> Any:
    return lambda shown, _req: RESOURCES[name](shown.node)


_ID = Out("id", Changing({0: INTEGER, 53: UUID}), lambda shown, req: (
    shown.node.uuid if req.version >= 53 else shown.node.id))
_SERVERS = Out("servers", Array(View([Out("name", STRING), Out("uuid", STRING)])), _servers)
_BRIEF = [
    _ID, Out("hypervisor_hostname", STRING, "node.hypervisor_hostname"),
    Out("state", STATE, lambda shown, _req: state_of(shown.node.service)),
    Out("status", STATUS, lambda shown, _req: status_of(shown.node.service))]
LISTED = View([*_BRIEF, _SERVERS])
UPTIME = View([*_BRIEF, Out("uptime", STRING, "node.uptime")])
HYPERVISOR = View([
    *_BRIEF, Out("hypervisor_type", STRING, "node.hypervisor_type"),
    Out("hypervisor_version", INTEGER, "node.hypervisor_version"), Out("host_ip", STRING, "node.host_ip"),
    Out("service", Object(additional=True), _service),
    *(Out(name, INTEGER, _resource(name), until=87) for name in RESOURCES),
    Out("disk_available_least", Plain(type=["integer", "null"]), "node.disk_available_least", until=87),
    Out("cpu_info", Changing({0: STRING, 28: Object(additional=True)}), lambda shown, req: (
        shown.node.cpu_info if req.version >= 28 else json.dumps(shown.node.cpu_info)), until=87),
    Out("uptime", STRING_OR_NULL, "node.uptime", since=88), _SERVERS])
_LIST = {"hypervisors_links": Field(LINKS, since=33)}


@accepts(query=INDEX_QUERY, answer=Object({"hypervisors": Array(LISTED), **_LIST}))
def index(req: Request) -> dict[str, Any]:
    """List hypervisors."""
    return _list(req, LISTED, "os-hypervisors")


@accepts(query=INDEX_QUERY, answer=Object({"hypervisors": Array(HYPERVISOR), **_LIST}))
def detail(req: Request) -> dict[str, Any]:
    """List hypervisors with details."""
    return _list(req, HYPERVISOR, "os-hypervisors/detail")


def _list(req: Request, view: View, path: str) -> dict[str, Any]:
    pattern = req.arg("hypervisor_hostname_pattern")
    if pattern is not None:
        if "limit" in req.query or "marker" in req.query:
            raise exception.Invalid("Paging over hypervisors with the hypervisor_hostname_pattern query parameter "
                                    "is not supported.")
        return {"hypervisors": [view.render(shown, req) for shown in _shown(req, _matching(req, pattern))]}
    limit, marker = req.page()
    if marker is not None and not (formats.is_uuid(marker) if req.version >= 53 else marker.isdecimal()):
        raise exception.MarkerNotFound(marker=marker)
    hypervisors = req.clients.hypervisors.index(req.ctx, limit=limit if req.version >= 33 else None, marker=marker)
    answer = {"hypervisors": [view.render(shown, req) for shown in _shown(req, hypervisors)]}
    return req.with_next(answer, "hypervisors_links", path, hypervisors, limit, "uuid" if req.version >= 53 else "id",
                         since=33)


def _matching(req: Request, pattern: str) -> list[ComputeNode]:
    hypervisors = req.clients.hypervisors.index(req.ctx, pattern=pattern)
    if not hypervisors:
        raise exception.NotFound(f"No hypervisor matching '{pattern}' could be found.")
    return hypervisors


def _shown(req: Request, nodes: Sequence[ComputeNode], servers: bool = False) -> list[Shown]:
    by_host: Servers = None
    if servers or req.flag("with_servers"):
        by_host = defaultdict(list)
        for server in req.clients.hypervisors.servers(req.ctx, sorted({node.host for node in nodes})):
            by_host[server.host or ""].append(server)
    return [Shown(node, by_host) for node in nodes]


def _get(req: Request) -> ComputeNode:
    """Return the hypervisor of the URL. Raises NotFound, and (from 2.53) Invalid for an id that is not a UUID."""
    ident = req.params["id"]
    if req.version >= 53:
        check_uuid(ident)
    elif not ident.isdecimal():
        raise _missing(ident)
    try:
        return req.clients.hypervisors.get(req.ctx, ident)
    except exception.ComputeHostNotFound:
        raise _missing(ident) from None


def _missing(ident: str) -> exception.NotFound:
    return exception.NotFound(f"Hypervisor with ID '{ident}' could not be found.")


@accepts(query=Query({"with_servers": _WITH_SERVERS}, strict=53), answer=single("hypervisor", HYPERVISOR))
def show(req: Request) -> Shown:
    """Show a hypervisor."""
    return _shown(req, [_get(req)])[0]


@accepts(query=ANY_QUERY, answer=single("hypervisor", UPTIME), errors=(501,))
def uptime(req: Request) -> Shown:
    """Show how long the host of a hypervisor has been up."""
    node = _get(req)
    if node.service is None or not node.service.up:
        raise exception.Invalid(f"Compute service of {node.host} is unavailable at this time.")
    if node.uptime is None:
        raise exception.NotImplementedHere(what="show the uptime")
    return Shown(node)


@accepts(query=ANY_QUERY, answer=listed("hypervisors", LISTED))
def search(req: Request) -> list[Shown]:
    """List the hypervisors whose hostname contains a text."""
    return _shown(req, _matching(req, req.params["id"]))


@accepts(query=ANY_QUERY, answer=listed("hypervisors", LISTED))
def servers(req: Request) -> list[Shown]:
    """List the servers on hypervisors whose hostname contains a text."""
    return _shown(req, _matching(req, req.params["id"]), servers=True)


@accepts(query=ANY_QUERY, answer=Object({"hypervisor_statistics": Object(additional=True)}))
def statistics(req: Request) -> dict[str, Any]:
    """Sum up the resources of all enabled hypervisors."""
    nodes = [node for node in req.clients.hypervisors.index(req.ctx)
             if node.service is not None and not node.service.disabled]
    return {"hypervisor_statistics": {
        "count": len(nodes), "disk_available_least": sum(node.disk_available_least or 0 for node in nodes),
        **{name: sum(value(node) for node in nodes) for name, value in RESOURCES.items()}}}
