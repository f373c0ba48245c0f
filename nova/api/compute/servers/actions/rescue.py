"""The actions rescue and unrescue: a server boots from a rescue disk, and from its own disks again."""

from __future__ import annotations

from typing import Any

import msgspec

from nova.api.compute.servers.servers import authorize, get, operate
from nova.api.compute.servers.servers_create import given_password, new_password
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Object, only
from nova.api.validation.types import STRING, UUID
from nova.conf import CONF
from nova.image import lookup


@accepts(body=only("rescue", Object({"adminPass": STRING, "rescue_image_ref": UUID}, null=True)),
         answer=Object({"adminPass": STRING}), errors=(409,))
def rescue(req: Request) -> dict[str, Any]:
    """Start a server from a rescue disk, so that its own disks can be repaired."""
    server = authorize(req, "os_compute_api:os-rescue")
    wanted = req.body["rescue"] or {}
    password = given_password(wanted) or new_password()
    options: dict[str, Any] = {"admin_pass": password, "volume_backed": req.version >= 87}
    if wanted.get("rescue_image_ref"):
        trusted = (server or get(req)).trusted_certs or ()
        image = lookup.find(req.ctx, wanted["rescue_image_ref"], trusted)
        kernel, ramdisk = lookup.boot_files(req.ctx, image)
        options |= {"image": msgspec.to_builtins(image), "kernel_id": kernel, "ramdisk_id": ramdisk}
    operate(req, "rescue", options)
    return {"adminPass": password} if CONF.api.enable_instance_password else {}


@accepts(body=only("unrescue"), errors=(409,))
def unrescue(req: Request) -> None:
    """Start a rescued server from its own disks again."""
    authorize(req, "os_compute_api:os-unrescue")
    operate(req, "unrescue")
