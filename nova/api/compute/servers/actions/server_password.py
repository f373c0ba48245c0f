"""Passwords of guests: os-server-password, with the encrypted password that a guest posted, and changePassword."""

from __future__ import annotations

from typing import Any

from nova import exception
from nova.api import polling
from nova.api.compute.servers import servers
from nova.api.compute.servers.servers_create import given_password
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, only
from nova.api.validation.types import STRING
from nova.objects.servers.guest import password_items, password_of

_POLICY = "os_compute_api:os-server-password:"
# Seconds that a request waits for the guest agent, and between two polls.
_PATIENCE, _PAUSE = 15.0, 0.1


@accepts(answer=Object({"password": STRING}))
def show(req: Request) -> dict[str, Any]:
    """Show the password that the guest posted; "" if there is none."""
    return {"password": password_of(servers.authorized_get(req, _POLICY + "show").system_metadata)}


def clear(req: Request) -> None:
    """Delete the password that the guest posted. The guest keeps it and may post another one."""
    servers.authorize(req, _POLICY + "clear")
    req.clients.servers.update(req.ctx, servers.server_id(req), {"system_metadata": password_items("")},
                               project_id=req.scope)


@accepts(body=only("changePassword", Object({"adminPass": Field(STRING, required=True)})), errors=(409, 501))
def change(req: Request) -> None:
    """Change the administrator's password in a running guest. Fails without a guest agent."""
    servers.authorize(req, "os_compute_api:os-admin-password")
    uuid = servers.server_id(req)
    try:
        action = servers.operate(req, "change_password", {
            "admin_pass": given_password(req.body["changePassword"])}).action
    except exception.InstanceIsLocked as error:  # Clients know no better message.
        raise exception.InstanceStateUnknown(instance_uuid=uuid, method="changePassword") from error
    polling.until(req, lambda: req.clients.servers.password_changed(
        req.ctx, uuid, action.uuid, project_id=req.scope), _PATIENCE, _PAUSE)
