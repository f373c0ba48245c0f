"""The actions rebuild (new disks, from the same or another image) and rescue (a rescue disk)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from nova import exception
from nova.api import microversion
from nova.api.compute.servers import servers_schemas, servers_view
from nova.api.compute.servers.servers import authorize, get, operate, server_id
from nova.api.compute.servers.servers_create import given_password, new_password, personality_of
from nova.api.request import Request, Response, is_true
from nova.api.router import accepts
from nova.api.validation.fields import Object, only
from nova.api.validation.formats import canonical_ipv6
from nova.api.validation.types import STRING, UUID
from nova.conf import CONF
from nova.image import lookup
from nova.objects.servers.instance import Instance

POLICY = "os_compute_api:servers:rebuild"

# Field of a rebuild request -> column of the server that it changes.
_COLUMNS = {
    "name": "display_name", "description": "display_description", "hostname": "hostname", "accessIPv4": "access_ip_v4",
    "accessIPv6": "access_ip_v6", "OS-DCF:diskConfig": "disk_config", "metadata": "metadata",
    "user_data": "user_data", "trusted_image_certificates": "trusted_certs", "key_name": "key_name"}


@accepts(body=servers_schemas.REBUILD, answer=Object({"server": servers_view.REBUILD}), errors=(409,),
         located=microversion.MAX)
def rebuild(req: Request) -> Response:
    """Recreate the disks of a server from an image; its id, host and addresses stay."""
    server = authorize(req, POLICY)
    wanted = req.body["rebuild"]
    if wanted.get("trusted_image_certificates"):
        authorize(req, POLICY + ":trusted_certs")
    password = given_password(wanted) or new_password()
    operate(req, "rebuild", {**_request(req, server or get(req), wanted), "admin_pass": password})
    view = servers_view.ViewContext(req, precise_addresses=req.version >= 75,
                                    admin_pass=password if CONF.api.enable_instance_password else None)
    return Response({"server": servers_view.REBUILD.render(get(req), view)},
                    headers={"Location": req.self_link("servers", server_id(req))})


def _request(req: Request, server: Instance, wanted: Mapping[str, Any]) -> dict[str, Any]:
    changes = {_COLUMNS[name]: value for name, value in wanted.items() if name in _COLUMNS}
    if "access_ip_v6" in changes:
        changes["access_ip_v6"] = canonical_ipv6(changes["access_ip_v6"])
    if server.volume_backed and changes.get("trusted_certs"):
        raise exception.InvalidInput("trusted_image_certificates are not for servers that boot from volumes.")
    image = lookup.find(req.ctx, wanted["imageRef"], changes.get("trusted_certs", server.trusted_certs) or ())
    kernel, ramdisk = lookup.boot_files(req.ctx, image)
    return {**changes, "image": msgspec.to_builtins(image), "kernel_id": kernel, "ramdisk_id": ramdisk,
            "personality": msgspec.to_builtins(personality_of(wanted)),
            "reimage": req.version >= 93,
            "keep_ephemerals": is_true(wanted.get("preserve_ephemeral"))}


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
