"""servers/{server_id}/ips: the addresses of a server by network."""

from __future__ import annotations

from typing import Any

from nova import exception
from nova.api.compute.servers import servers
from nova.api.compute.servers.servers_view import addresses
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Object
from nova.api.validation.types import OPEN


@accepts(answer=Object({"addresses": OPEN}))
def index(req: Request) -> dict[str, Any]:
    """List the addresses of a server."""
    return {"addresses": addresses(servers.authorized_get(req, "os_compute_api:ips:index"), precise=False)}


@accepts(answer=OPEN)
def show(req: Request) -> dict[str, Any]:
    """List the addresses of a server in one network."""
    networks = addresses(servers.authorized_get(req, "os_compute_api:ips:show"), precise=False)
    label = req.params["label"]
    if label not in networks:
        raise exception.NotFound("Instance is not a member of specified network")
    return {label: networks[label]}
