"""servers/{server_id}/os-virtual-interfaces: the interfaces of a server as they were shown once (2.1 to 2.43)."""

from __future__ import annotations

from typing import Any

from nova.api.compute.servers.servers import authorized_get
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Array, Object, Out, View
from nova.api.validation.types import OFFSET_QUERY, STRING

INTERFACE = View([
    Out("id", STRING), Out("mac_address", STRING, "mac"), Out("net_id", STRING, "network_id", since=12),
    Out("OS-EXT-VIF-NET:net_id", STRING, lambda vif, req: vif.network_id if req.legacy else ABSENT),
])


@accepts(query=OFFSET_QUERY, answer=Object({"virtual_interfaces": Array(INTERFACE)}))
def index(req: Request) -> dict[str, Any]:
    """List the interfaces of a server."""
    server = authorized_get(req, "os_compute_api:os-virtual-interfaces")
    limit, offset = req.offset_page()
    return {"virtual_interfaces": [INTERFACE.render(vif, req) for vif in server.network_info[offset:offset + limit]]}
