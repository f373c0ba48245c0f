"""servers/{server_id}/diagnostics: hypervisor data about a guest, standardized from 2.48."""

from typing import Any

from nova.api.compute.servers import servers
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Changing, Object, Out, Plain, Type, View
from nova.api.validation.types import INTEGER, INTEGER_OR_NULL, STRING_OR_NULL


def _view(**keys: Type) -> View:
    """Return a view with only these keys of a host's answer."""
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
_GUEST = _view(
    state=STRING_OR_NULL, driver=STRING_OR_NULL, hypervisor=STRING_OR_NULL, hypervisor_os=STRING_OR_NULL,
    config_drive=Plain(type=["boolean", "null"]), **_numbers("uptime", "num_cpus", "num_nics", "num_disks"))


def _list_of(name: str, view: View) -> Out:
    return Out(name, Array(view), lambda item, req: [view.render(element, req) for element in item.get(name) or []])


_SHAPE = View([
    *_GUEST.keys, _list_of("cpu_details", _CPU), _list_of("disk_details", _DISK), _list_of("nic_details", _NIC),
    Out("memory_details", _MEMORY, lambda item, req: _MEMORY.render(item.get("memory_details") or {}, req))])


@accepts(answer=Changing({0: Object(patterns={".+": INTEGER}), 48: _SHAPE}), errors=(409, 501))
def index(req: Request) -> dict[str, Any]:
    """Show the diagnostics of a server; before 2.48 with names of the hypervisor."""
    server = servers.authorized_get(req, "os_compute_api:os-server-diagnostics")
    diagnostics = servers.compute_of(req, server).diagnostics(req.ctx, server)
    return dict(diagnostics.flat) if req.version < 48 else _SHAPE.render(diagnostics.values, req)
