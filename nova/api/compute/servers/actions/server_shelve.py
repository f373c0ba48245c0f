"""Actions of POST /servers/{server_id}/action that shelve, offload and unshelve a server."""

from __future__ import annotations

from nova.api.compute.servers.actions.server_actions import simple
from nova.api.compute.servers.servers import authorize, operate
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Changing, Field, Object, only
from nova.api.validation.types import ANY, NAME, STRING, STRING_OR_NULL

_SHELVE = "os_compute_api:os-shelve:"

shelve = simple("shelve", "shelve", _SHELVE + "shelve", "Shelve a server: stop it and save it as an image.")
shelve_offload = simple("shelveOffload", "shelve_offload", _SHELVE + "shelve_offload",
                        "Take a shelved server off its host.")

_ZONE = Object({"availability_zone": Field(NAME, required=True)}, null=True)
_WHERE = Object({"availability_zone": STRING_OR_NULL, "host": STRING}, null=True)


@accepts(body=only("unshelve", Changing({0: ANY, 77: _ZONE, 91: _WHERE})), errors=(409,))
def unshelve(req: Request) -> None:
    """Restore a shelved server."""
    authorize(req, _SHELVE + "unshelve")
    wanted = (req.body["unshelve"] or {}) if req.version >= 77 else {}
    if "host" in wanted:
        authorize(req, _SHELVE + "unshelve_to_host")
    zone = wanted.get("availability_zone")
    operate(req, "unshelve", {"availability_zone": zone, "host": wanted.get("host"),
                              "unpin": "availability_zone" in wanted and zone is None})
