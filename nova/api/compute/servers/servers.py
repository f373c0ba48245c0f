"""Servers: show, update, delete. Lists, creation and actions have separate modules."""

import contextlib
from typing import Any

from nova import bus, exception, policies
from nova.api.compute.servers import servers_schemas, servers_view
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Object, Query
from nova.api.validation.formats import canonical_ipv6
from nova.conf import CONF
from nova.objects.servers.action import Accepted
from nova.objects.servers.instance import Instance
from nova.rpcapi.compute import Compute

_COLUMNS = {
    "name": "display_name", "accessIPv4": "access_ip_v4", "accessIPv6": "access_ip_v6",
    "OS-DCF:diskConfig": "disk_config", "description": "display_description", "hostname": "hostname",
    "pinned_availability_zone": "pinned_availability_zone"}


def get(req: Request, uuid: str | None = None) -> Instance:
    """Return the server of the URL if the caller's project may see it. Raises InstanceNotFound."""
    return req.clients.servers.get(req.ctx, uuid or server_id(req), project_id=req.scope)


def server_id(req: Request) -> str:
    return req.params["server_id"]


def authorize(req: Request, rule: str) -> Instance | None:
    """Check ``rule`` for the server of the URL. A rule that allows the operation for all servers of the project does
    not depend on the server, so None is returned without a call. Otherwise (for example, a policy by user) the server
    is read, checked and returned."""
    target = {} if req.ctx.is_admin else {"project_id": req.ctx.project_id}
    if policies.plain(rule) and req.allowed(rule, target):
        return None
    server = get(req)
    req.authorize(rule, target_of(server))
    return server


def target_of(server: Instance) -> dict[str, Any]:
    return {"project_id": server.project_id, "user_id": server.user_id}


def authorized_get(req: Request, rule: str) -> Instance:
    """Return the server of the URL after a check of ``rule``."""
    server = get(req)
    req.authorize(rule, target_of(server))
    return server


def compute_of(req: Request, server: Instance) -> Compute:
    """Return the client of the server's host. Raises InstanceNotReady (it has no host), Conflict (the host is down)."""
    if not server.host:
        raise exception.InstanceNotReady(instance_id=server.uuid)
    if servers_view.ViewContext(req).status_of(server.host) in ("DOWN", "UNKNOWN"):
        # Fail at once: a call to a host that is down ends only after the RPC timeout of a minute.
        raise exception.ComputeServiceUnavailable()
    return bus.at(req.clients.compute, server.host)


@accepts(query=Query(strict=102), answer=Object({"server": servers_view.SHOW}))
def show(req: Request) -> dict[str, Any]:
    """Show a server."""
    server = authorized_get(req, "os_compute_api:servers:show")
    return {"server": servers_view.SHOW.render(server, servers_view.ViewContext(req))}


@accepts(body=servers_schemas.UPDATE, answer=Object({"server": servers_view.UPDATE}), errors=(409,))
def update(req: Request) -> dict[str, Any]:
    """Change the name, description, hostname or addresses of a server."""
    authorize(req, "os_compute_api:servers:update")
    changes = {_COLUMNS[name]: value for name, value in req.body["server"].items()}
    if "access_ip_v6" in changes:
        changes["access_ip_v6"] = canonical_ipv6(changes["access_ip_v6"])
    server = get(req) if not changes else req.clients.servers.update(
        req.ctx, server_id(req), changes, project_id=req.scope)
    view = servers_view.ViewContext(req, precise_addresses=req.version >= 75)
    return {"server": servers_view.UPDATE.render(server, view)}


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Delete a server. If [DEFAULT]reclaim_instance_interval is set, power it off; it can be restored for that time."""
    authorize(req, "os_compute_api:servers:delete")
    if CONF.reclaim_instance_interval:
        with contextlib.suppress(exception.InstanceStateUnknown, exception.InstanceInvalidState, exception.TooManyWait):
            operate(req, "soft_delete")
            return
    # Servers that never ran, are being deleted, or have too many queued operations cannot be soft-deleted: delete them.
    operate(req, "delete")


def operate(req: Request, operation: str, payload: dict[str, Any] | None = None) -> Accepted:
    """Start an operation on the server of the URL; the conductor checks lock, host and states."""
    return req.clients.servers.operate(req.ctx, server_id(req), operation, payload=payload, project_id=req.scope)

