"""servers/{server_id}/topology (2.78): the NUMA cells of a server."""

import contextlib
from typing import Any

from nova import exception
from nova.api.compute.servers import servers
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Array, Object, Out, View
from nova.api.validation.types import INTEGER, INTEGER_OR_NULL
from nova.objects.dedicated_resources.numa import GuestCell
from nova.objects.requirements.cpu_topology import topology
from nova.objects.requirements.properties import Properties
from nova.objects.servers.instance import Instance

_POLICY = "compute:server:topology:"
_CPUS = Array(INTEGER)


class _ViewContext:
    """The context in which a cell is shown. ``threads``: threads per core; ``host``: the caller may see the host."""

    def __init__(self, req: Request, server: Instance) -> None:
        self.version, self.threads = req.version, 1
        # A server whose topology is invalid was never on a hypervisor that assigns CPUs.
        with contextlib.suppress(exception.InvalidInput):
            if (arranged := topology(Properties.of(server))) is not None:
                self.threads = arranged.threads
        self.host = req.allowed(_POLICY + "host:index", servers.target_of(server))


def _cpus(cell: GuestCell) -> list[int]:
    return sorted([*cell.cpus, *cell.pcpus])


def _siblings(cell: GuestCell, view: _ViewContext) -> list[list[int]]:
    """Return the CPUs of the cell by core, for guests with several threads per core."""
    if view.threads == 1:
        return []
    cores: dict[int, list[int]] = {}
    for cpu in _cpus(cell):
        cores.setdefault(cpu // view.threads, []).append(cpu)
    return list(cores.values())


NODE = View([
    Out("memory_mb", INTEGER),
    Out("siblings", Array(_CPUS), _siblings),
    Out("vcpu_set", _CPUS, lambda cell, _context: _cpus(cell)),
    Out("host_node", INTEGER_OR_NULL, lambda cell, view: cell.host_cell if view.host else ABSENT),
    Out("cpu_pinning", Object(patterns={"^[0-9]+$": INTEGER}), lambda cell, view: {
        str(cpu): host for cpu, host in sorted(cell.pinning.items())} if view.host else ABSENT),
])


@accepts(answer=Object({"nodes": Array(NODE), "pagesize_kb": INTEGER_OR_NULL}))
def index(req: Request) -> dict[str, Any]:
    """Show the NUMA cells of a server, and to some callers the cells of its host."""
    server = servers.authorized_get(req, _POLICY + "index")
    cells = server.numa_topology.cells if server.numa_topology is not None else []
    view = _ViewContext(req, server)
    return {"nodes": [NODE.render(cell, view) for cell in cells],
            "pagesize_kb": cells[0].pagesize_kb if cells else None}
