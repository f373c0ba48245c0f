"""servers/{server_id}/diagnostics: hypervisor data about a guest, standardized from 2.48; servers/{server_id}/topology:
its NUMA cells."""

import contextlib
from typing import Any

from nova import exception
from nova.api.compute.servers import servers
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Array, Changing, Object, Out, Plain, Type, View
from nova.api.validation.types import INTEGER, INTEGER_OR_NULL, STRING_OR_NULL
from nova.objects.dedicated_resources.numa import GuestCell
from nova.objects.requirements.cpu_topology import topology
from nova.objects.requirements.properties import Properties
from nova.objects.servers.instance import Instance


def _view(**keys: Type) -> View:
    """Return a view with only these keys of the data that a host returns."""
    def out(name: str, kind: Type) -> Out:
        return Out(name, kind, lambda item, _req: item.get(name))

    return View([out(name, kind) for name, kind in keys.items()])


def _numbers(*names: str) -> dict[str, Type]:
    return dict.fromkeys(names, INTEGER_OR_NULL)


_CPU = _view(**_numbers("id", "time", "utilisation"))
_DISK = _view(**_numbers("read_bytes", "read_requests", "write_bytes", "write_requests", "errors_count"))
_NIC = _view(mac_address=STRING_OR_NULL, **_numbers(
    *(f"{way}_{what}" for way in ("rx", "tx") for what in ("octets", "errors", "drop", "packets", "rate"))))
_MEMORY = _view(**_numbers("maximum", "used"))
_GUEST = _view(state=STRING_OR_NULL, driver=STRING_OR_NULL, hypervisor=STRING_OR_NULL, hypervisor_os=STRING_OR_NULL,
               config_drive=Plain(type=["boolean", "null"]), **_numbers("uptime", "num_cpus", "num_nics", "num_disks"))


def _list_of(name: str, view: View) -> Out:
    return Out(name, Array(view), lambda item, req: [view.render(element, req) for element in item.get(name) or []])


_SHAPE = View([
    *_GUEST.keys, _list_of("cpu_details", _CPU), _list_of("disk_details", _DISK), _list_of("nic_details", _NIC),
    Out("memory_details", _MEMORY, lambda item, req: _MEMORY.render(item.get("memory_details") or {}, req))])


@accepts(answer=Changing({0: Object(patterns={".+": INTEGER}), 48: _SHAPE}), errors=(409, 501))
def index(req: Request) -> dict[str, Any]:
    """Show the diagnostics of a server; before 2.48 the hypervisor chooses the field names."""
    server = servers.authorized_get(req, "os_compute_api:os-server-diagnostics")
    diagnostics = servers.compute_of(req, server).diagnostics(req.ctx, server)
    return dict(diagnostics.flat) if req.version < 48 else _SHAPE.render(diagnostics.values, req)


# -- NUMA cells (2.78) ----------------------------------------------------------------------------------
_POLICY = "compute:server:topology:"
_CPUS = Array(INTEGER)


class _ViewContext:
    """The context of a shown NUMA cell. ``threads``: threads per core; ``host``: the caller may see the host."""

    def __init__(self, req: Request, server: Instance) -> None:
        self.version, self.threads = req.version, 1
        # Keep 1 thread if the topology is invalid: no hypervisor that assigns CPUs has ever run such a server.
        with contextlib.suppress(exception.InvalidInput):
            if (arranged := topology(Properties.of(server))) is not None:
                self.threads = arranged.threads
        self.host = req.allowed(_POLICY + "host:index", servers.target_of(server))


def _cpus(cell: GuestCell) -> list[int]:
    return sorted([*cell.cpus, *cell.pcpus])


def _siblings(cell: GuestCell, view: _ViewContext) -> list[list[int]]:
    """Return the CPUs of a NUMA cell by core, for guests with several threads per core."""
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
        str(cpu): host for cpu, host in sorted(cell.pinning.items())} if view.host else ABSENT)])


@accepts(answer=Object({"nodes": Array(NODE), "pagesize_kb": INTEGER_OR_NULL}))
def numa_cells(req: Request) -> dict[str, Any]:
    """Show the NUMA cells of a server and, if the policy allows it, the cells of its host."""
    server = servers.authorized_get(req, _POLICY + "index")
    cells = server.numa_topology.cells if server.numa_topology is not None else []
    view = _ViewContext(req, server)
    return {"nodes": [NODE.render(cell, view) for cell in cells],
            "pagesize_kb": cells[0].pagesize_kb if cells else None}
