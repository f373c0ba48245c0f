"""Actions of POST /servers/{server_id}/action that change the flavor or the host of a server, or shelve it."""

from typing import Any

from nova import exception
from nova.api import polling
from nova.api.compute.servers.actions.server_actions import simple
from nova.api.compute.servers.servers import authorize, operate, server_id
from nova.api.compute.servers.servers_create import given_password, new_password
from nova.api.errors import as_invalid
from nova.api.request import Request, is_true
from nova.api.router import accepts
from nova.api.validation.fields import Changing, Field, Object, Plain, enum, only
from nova.api.validation.types import ANY, BOOLEAN, HOSTNAME, NAME, STRING, STRING_OR_NULL
from nova.conf import CONF
from nova.objects.servers.action import Action

# Seconds that a response waits for the checks of a live migration (202 after that), and seconds between two polls.
_CHECKS_WAIT, _CHECKS_POLL = 60.0, 0.25

_SERVERS = "os_compute_api:servers:"
_MIGRATE = "os_compute_api:os-migrate-server:migrate"
_LIVE = "os_compute_api:os-migrate-server:migrate_live"
_SHELVE = "os_compute_api:os-shelve:"

_HOST_OR_NULL = Plain(**{**HOSTNAME.schema(0), "type": ["string", "null"]})


# -- flavor -------------------------------------------------------------------------------------------
@accepts(body=only("resize", Object({
    "flavorRef": Field(Plain(type=["string", "integer"], minLength=1), required=True),
    "OS-DCF:diskConfig": enum("AUTO", "MANUAL")})), errors=(409,))
def resize(req: Request) -> None:
    """Change the flavor of a server. The resize must then be confirmed or reverted."""
    authorize(req, _SERVERS + "resize")
    wanted = req.body["resize"]
    # Old clients send the URL of the flavor.
    flavor_id = str(wanted["flavorRef"]).rstrip("/").rsplit("/", 1)[-1]
    with as_invalid(exception.FlavorNotFound):
        operate(req, "resize", {"flavor_id": flavor_id, "disk_config": wanted.get("OS-DCF:diskConfig")})


# The response for a missing migration is 400, not 404, because the URL exists.
confirm_resize = simple("confirmResize", "confirm_resize", _SERVERS + "confirm_resize",
                        "Confirm a resize or cold migration; the old guest is removed.",
                        invalid=(exception.MigrationNotFound,))
revert_resize = simple("revertResize", "revert_resize", _SERVERS + "revert_resize",
                       "Revert a resize or cold migration.", invalid=(exception.MigrationNotFound,))


# -- host ---------------------------------------------------------------------------------------------
@accepts(body=only("migrate", Changing({0: ANY, 56: Object({"host": _HOST_OR_NULL}, null=True)})), errors=(409,))
def migrate(req: Request) -> None:
    """Stop a server and migrate it to another host. The migration must then be confirmed or reverted."""
    authorize(req, _MIGRATE)
    host = (req.body["migrate"] or {}).get("host") if req.version >= 56 else None
    if host is not None:
        authorize(req, _MIGRATE + ":host")
    _move(req, "migrate", {"host": host})


_AUTO = Plain(type=["boolean", "string"], enum=[*BOOLEAN.schema(0)["enum"], "auto"])


@accepts(body=only("os-migrateLive", Object({
    "host": Field(_HOST_OR_NULL, required=True),
    "block_migration": Field(Changing({0: BOOLEAN, 25: _AUTO}), required=True),
    "disk_over_commit": Field(BOOLEAN, until=24, required=True),
    "force": Field(BOOLEAN, since=30, until=67)})), errors=(409,))
def live_migrate(req: Request) -> None:
    """Migrate a running server to another host.

    Before 2.34 the response waits for the checks of source and destination. Its status is 400 if no host fits."""
    authorize(req, _LIVE)
    wanted = req.body["os-migrateLive"]
    host, block = wanted["host"], wanted["block_migration"]
    if host is not None:
        authorize(req, _LIVE + ":host")
    action = _move(req, "live_migrate", {"host": host, "block_migration": None if block == "auto" else is_true(block),
                                         "force": _forced(req, wanted, since=30)})
    if req.version < 34:
        polling.until(req, lambda: req.clients.servers.live_migration_checked(
            req.ctx, server_id(req), action.uuid, project_id=req.scope), _CHECKS_WAIT, _CHECKS_POLL)


def _move(req: Request, operation: str, payload: dict[str, Any]) -> Action:
    with as_invalid(exception.ComputeHostNotFound):
        return operate(req, operation, payload).action


@accepts(body=only("evacuate", Object({
    "host": HOSTNAME, "onSharedStorage": Field(BOOLEAN, until=13, required=True), "adminPass": STRING,
    "force": Field(BOOLEAN, since=29, until=67)})), answer=Object({"adminPass": Field(STRING, until=13)}),
    errors=(409,))
def evacuate(req: Request) -> dict[str, Any] | None:
    """Evacuate a server from a failed host to another host."""
    authorize(req, "os_compute_api:os-evacuate")
    wanted = req.body["evacuate"]
    password = _password(wanted)
    operate(req, "evacuate", {
        "host": wanted.get("host"), "admin_pass": password, "force": _forced(req, wanted, since=29),
        # Before 2.95 a server that was running is started on the new host; from 2.95 it stays stopped.
        "stay_off": req.version >= 95})
    if req.version >= 14:
        return None
    return {"adminPass": password} if password and CONF.api.enable_instance_password else {}


def _password(wanted: dict[str, Any]) -> str | None:
    """Return the new password of the server, or None if its disks, which contain the password, are kept."""
    given = given_password(wanted)
    if not is_true(wanted.get("onSharedStorage")):
        return given or new_password()
    if given:
        raise exception.InvalidInput("A server that keeps its disks keeps its password: adminPass and onSharedStorage "
                                     "exclude one another.")
    return None


def _forced(req: Request, wanted: dict[str, Any], since: int) -> bool:
    """Return True if the requested host is used without checks of the scheduler: always before version ``since``."""
    if req.version < since:
        return wanted.get("host") is not None
    force = is_true(wanted.get("force"))
    if force and wanted.get("host") is None:
        raise exception.InvalidInput("force requires a destination host.")
    return force


# -- shelve -------------------------------------------------------------------------------------------
shelve = simple("shelve", "shelve", _SHELVE + "shelve", "Shelve a server: stop it and save it as an image.")
shelve_offload = simple("shelveOffload", "shelve_offload", _SHELVE + "shelve_offload",
                        "Remove a shelved server from its host.")

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
