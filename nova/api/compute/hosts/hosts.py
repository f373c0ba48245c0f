"""os-hosts (before 2.43): hosts with their services, and usage by project; os-baremetal-nodes (before 2.36)."""

from collections.abc import Iterable
from typing import Any

from nova import exception
from nova.api.compute.hosts.hypervisors import RESOURCES
from nova.api.compute.hosts.services import COMPUTE, status_of
from nova.api.request import Request
from nova.api.router import Handler, accepts
from nova.api.validation.fields import Array, Object, Out, Query, View, enum, listed
from nova.api.validation.types import ANY_QUERY, INTEGER, STRING, STRING_OR_NULL
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.node import ComputeNode
from nova.objects.hosts.service import Service
from nova.objects.servers.instance import Instance

_ABLE = enum("enable", "disable", "Enable", "Disable", "ENABLE", "DISABLE")
_CHANGE = Object({"status": _ABLE, "maintenance_mode": _ABLE},
                 anyOf=[{"required": ["status"]}, {"required": ["maintenance_mode"]}])
_HOST = View([
    Out("host_name", STRING, "host"),
    Out("service", STRING, lambda service, _req: service.binary.removeprefix("nova-")),
    Out("zone", STRING_OR_NULL, "availability_zone")])
_RESOURCE = Object({"host": STRING, "project": STRING, "cpu": INTEGER, "memory_mb": INTEGER, "disk_gb": INTEGER})


@accepts(query=Query({"zone": STRING}, strict=None), answer=listed("hosts", _HOST))
def index(req: Request) -> list[Service]:
    """List hosts and their services."""
    zone = req.arg("zone")
    return [service for service in req.clients.services.index(req.ctx) if not zone or zone == service.availability_zone]


@accepts(query=ANY_QUERY, answer=Object({"host": Array(Object({"resource": _RESOURCE}))}))
def show(req: Request) -> dict[str, Any]:
    """Show the resources of a host: total, used, and reserved by the servers of each project."""
    host = req.params["id"]
    nodes = req.clients.hypervisors.index(req.ctx, host=host)
    if not nodes:
        raise exception.ComputeHostNotFound(host=host)
    servers = req.clients.hypervisors.servers(req.ctx, [host])
    amounts = {"(total)": _of_nodes(nodes, ""), "(used_now)": _of_nodes(nodes, "_used"),
               "(used_max)": _of_servers(servers)}
    for project in sorted({server.project_id for server in servers}):
        amounts[project] = _of_servers(server for server in servers if server.project_id == project)
    return {"host": [{"resource": {"host": host, "project": project, **amount}} for project, amount in amounts.items()]}


def _of_nodes(nodes: Iterable[ComputeNode], what: str) -> dict[str, int]:
    return {name: sum(RESOURCES[f"{resource}{what}"](node) for node in nodes) for name, resource in (
        ("cpu", "vcpus"), ("memory_mb", "memory_mb"), ("disk_gb", "local_gb"))}


def _of_servers(servers: Iterable[Instance]) -> dict[str, int]:
    flavors: list[Flavor] = [server.flavor for server in servers]
    return {"cpu": sum(flavor.vcpus for flavor in flavors), "memory_mb": sum(flavor.memory_mb for flavor in flavors),
            "disk_gb": sum(flavor.root_gb + flavor.ephemeral_gb for flavor in flavors)}


@accepts(body=_CHANGE, answer=Object({"host": STRING, "status": STRING}), errors=(501,))
def update(req: Request) -> dict[str, Any]:
    """Enable or disable the compute service of a host for new servers."""
    host = req.params["id"]
    _check(req, host)
    if "maintenance_mode" in req.body:
        raise exception.NotImplementedHere("Virt driver does not implement host maintenance mode.")
    changed = req.clients.services.update_by_host(
        req.ctx, host, COMPUTE, disabled=req.body["status"].lower() == "disable")
    return {"host": host, "status": status_of(changed)}


def _check(req: Request, host: str) -> None:
    if not req.clients.services.index(req.ctx, host, COMPUTE):
        raise exception.ComputeHostNotFound(host=host)


def _power(summary: str) -> Handler:
    @accepts(query=ANY_QUERY, errors=(501,))
    def handler(req: Request) -> None:
        _check(req, req.params["id"])
        raise exception.NotImplementedHere("Virt driver does not implement host power management.")

    handler.__doc__ = summary
    return handler


reboot = _power("Reboot a host (not supported).")
shutdown = _power("Shut down a host (not supported).")
startup = _power("Start a host (not supported).")


# -- Ironic's nodes, which Nova does not support --------------------------------------------------------
@accepts(query=ANY_QUERY, errors=(501,))
def no_ironic(req: Request) -> None:
    """Answer that bare metal nodes are not supported."""
    raise exception.NotImplementedHere("Ironic client unavailable, cannot access Ironic.")


def _refusing(command: str) -> Handler:
    def handler(req: Request) -> None:
        raise exception.Invalid(f"Command Not supported. Please use Ironic command {command} to perform this action.")

    handler.__doc__ = f"Refuse the request (400): {command} is a command of Ironic."
    return handler


create_node = _refusing("node-create")
delete_node = _refusing("node-delete")
add_interface = _refusing("port-create")
remove_interface = _refusing("port-delete")
