"""Actions of POST /servers/{server_id}/action that start an operation or change one value, and passwords of guests."""

from typing import Any

from nova import exception
from nova.api import polling
from nova.api.compute.servers.servers import authorize, authorized_get, get, operate, server_id, target_of
from nova.api.compute.servers.servers_create import given_password
from nova.api.errors import as_invalid
from nova.api.request import Request
from nova.api.router import Handler, accepts
from nova.api.validation.fields import Changing, Field, Object, Plain, Type, enum, only, string
from nova.api.validation.types import ANY, STRING, TEXT
from nova.objects.servers.guest import password_items, password_of

_SERVERS = "os_compute_api:servers:"
_LOCK = "os_compute_api:os-lock-server:"
# Seconds that a response waits for the guest agent to change a password (then 202), and seconds between two polls.
_PASSWORD_WAIT, _PASSWORD_POLL = 15.0, 0.1


def simple(action: str, operation: str, policy: str, summary: str, argument: Type = ANY,
           invalid: tuple[type[exception.NovaException], ...] = ()) -> Handler:
    """Return the handler of an action that only starts ``operation``. ``invalid``: errors that are reported as 400."""
    @accepts(body=only(action, argument), errors=(409,))
    def handler(req: Request) -> None:
        authorize(req, policy)
        with as_invalid(*invalid):
            operate(req, operation)

    handler.__doc__ = summary
    handler.__name__ = operation
    return handler


start = simple("os-start", "start", _SERVERS + "start", "Start a stopped server.")
stop = simple("os-stop", "stop", _SERVERS + "stop", "Stop a running server.")
pause = simple("pause", "pause", "os_compute_api:os-pause-server:pause", "Pause a server; its memory stays.")
unpause = simple("unpause", "unpause", "os_compute_api:os-pause-server:unpause", "Resume a paused server.")
suspend = simple("suspend", "suspend", "os_compute_api:os-suspend-server:suspend", "Suspend a server to disk.")
resume = simple("resume", "resume", "os_compute_api:os-suspend-server:resume", "Resume a suspended server.")
force_delete = simple("forceDelete", "delete", "os_compute_api:os-deferred-delete:force",
                      "Delete a server immediately, even if it could be restored.")
restore = simple("restore", "restore", "os_compute_api:os-deferred-delete:restore", "Restore a soft-deleted server.")
unrescue = simple("unrescue", "unrescue", "os_compute_api:os-unrescue",
                  "Start a rescued server from its own disks again.")
trigger_crash_dump = simple("trigger_crash_dump", "trigger_crash_dump", _SERVERS + "trigger_crash_dump",
                            "Trigger a crash dump in a guest by a non-maskable interrupt.", Plain(type="null"))


@accepts(body=only("reboot", Object({
    "type": Field(enum("HARD", "Hard", "hard", "SOFT", "Soft", "soft"), required=True)})), errors=(409,))
def reboot(req: Request) -> None:
    """Reboot a server: SOFT requests the reboot from the guest's operating system, HARD restarts the guest."""
    authorize(req, _SERVERS + "reboot")
    operate(req, f"reboot_{req.body['reboot']['type'].lower()}")


@accepts(body=only("lock", Changing({0: ANY, 73: Object({"locked_reason": TEXT}, null=True)})))
def lock(req: Request) -> None:
    """Lock a server: until it is unlocked, only administrators can change it."""
    authorize(req, _LOCK + "lock")
    wanted = req.body["lock"] if req.version >= 73 else None
    req.clients.servers.lock(req.ctx, server_id(req), reason=(wanted or {}).get("locked_reason"), project_id=req.scope)


@accepts(body=only("unlock"), errors=(409,))
def unlock(req: Request) -> None:
    """Unlock a server."""
    server = authorized_get(req, _LOCK + "unlock")
    by_owner = server.locked_by == "owner" and server.project_id == req.ctx.project_id
    override = server.locked_by is not None and not by_owner
    if override:
        req.authorize(_LOCK + "unlock:unlock_override", target_of(server))
    req.clients.servers.unlock(req.ctx, server_id(req), project_id=req.scope, override=override)


@accepts(body=only("injectNetworkInfo"), errors=(409,))
def inject_network_info(req: Request) -> None:
    """Accept the action for old clients. Guests get their network settings from DHCP, metadata and config drives."""
    server = authorized_get(req, "os_compute_api:os-admin-actions:inject_network_info")
    if server.locked and not req.ctx.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=server.uuid)


@accepts(body=only("os-resetState", Object({"state": Field(enum("active", "error"), required=True)})))
def reset_state(req: Request) -> None:
    """Set the state of a server in the database to active or error."""
    authorize(req, "os_compute_api:os-admin-actions:reset_state")
    if not req.ctx.is_admin:
        get(req)  # A policy may allow this to non-administrators, but only for servers that they can see.
    req.clients.servers.reset_state(req.ctx, server_id(req), req.body["os-resetState"]["state"])


def _security_group(action: str, rule: str, add: bool) -> Handler:
    body = Object({action: Field(Object({"name": Field(string(minLength=1), required=True)}), required=True)},
                  additional=True)

    @accepts(body=body, errors=(409,))
    def handler(req: Request) -> None:
        authorize(req, "os_compute_api:os-security-groups:" + rule)
        name = req.body[action]["name"].strip()
        if not name:
            raise exception.InvalidInput("Security group name cannot be empty")
        req.clients.servers.set_security_group(req.ctx, server_id(req), name, add, project_id=req.scope)

    handler.__doc__ = "Add a security group to a server." if add else "Remove a security group from a server."
    return handler


add_security_group = _security_group("addSecurityGroup", "add", True)
remove_security_group = _security_group("removeSecurityGroup", "remove", False)


# -- passwords of guests: os-server-password, with the encrypted password that a guest posted, and changePassword --
@accepts(answer=Object({"password": STRING}))
def show_password(req: Request) -> dict[str, Any]:
    """Show the password that the guest posted; "" if there is none."""
    return {"password": password_of(authorized_get(req, "os_compute_api:os-server-password:show").system_metadata)}


def clear_password(req: Request) -> None:
    """Delete the password that the guest posted from the database. The guest may then post another password."""
    authorize(req, "os_compute_api:os-server-password:clear")
    req.clients.servers.update(req.ctx, server_id(req), {"system_metadata": password_items("")}, project_id=req.scope)


@accepts(body=only("changePassword", Object({"adminPass": Field(STRING, required=True)})), errors=(409, 501))
def change_password(req: Request) -> None:
    """Change the administrator's password in a running guest. Fails without a guest agent."""
    authorize(req, "os_compute_api:os-admin-password")
    uuid = server_id(req)
    try:
        action = operate(req, "change_password", {"admin_pass": given_password(req.body["changePassword"])}).action
    except exception.InstanceIsLocked as error:  # Clients expect this error for locked servers.
        raise exception.InstanceStateUnknown(instance_uuid=uuid, method="changePassword") from error
    polling.until(req, lambda: req.clients.servers.password_changed(
        req.ctx, uuid, action.uuid, project_id=req.scope), _PASSWORD_WAIT, _PASSWORD_POLL)
