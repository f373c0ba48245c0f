"""Cinder's API (v3, from microversion 3.44 on), as conductors ask it."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Required, TypedDict, TypeVar

from msgspec import Meta

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.service_clients import ServiceClient, Unreachable, decode_response
from nova.volume.cinder_errors import check

GROUP = "cinder"
# Attachments begin with 3.27 and can be completed from 3.44 on.
_VERSION = "volume 3.44"
_VERSION_OF_REIMAGE = {"OpenStack-API-Version": "volume 3.68"}
_VERSION_OF_EXTENSION = {"OpenStack-API-Version": "volume 3.71"}
# How far a snapshot is when Nova has done its part: Cinder looks for just that.
_OURS = "90%"
# No size is larger.
MOST_GIB = 2**31 - 1
_INTERFACES = {"publicURL": "public", "internalURL": "internal", "adminURL": "admin"}

# Seconds until something is tried once more that cannot be left to the operation.
_PAUSE = 1.0

Raw = dict[str, Any]
T = TypeVar("T")

_Id = Annotated[str, Meta(min_length=1, max_length=64)]


class _Use(TypedDict, total=False):
    server_id: str | None
    attachment_id: str | None
    device: str | None


# What has to be in an answer, and of which type everything is that is looked at.
_Volume = TypedDict("_Volume", {
    "id": Required[_Id], "status": Required[str], "size": Required[Annotated[int, Meta(ge=0, le=MOST_GIB)]],
    "attachments": list[_Use], "metadata": dict[str, Any], "user_id": str | None, "name": str | None,
    "volume_type": str | None, "availability_zone": str | None, "bootable": str | None,
    "multiattach": bool | None, "encrypted": bool | None, "migration_status": str | None,
    "description": str | None, "snapshot_id": str | None, "created_at": datetime.datetime | None,
    "os-vol-tenant-attr:tenant_id": str | None, "volume_image_metadata": dict[str, Any] | None}, total=False)


class _Attachment(TypedDict, total=False):
    id: Required[_Id]
    instance: str | None
    volume_id: str | None
    status: str | None
    connection_info: dict[str, Any] | None


class _Connected(TypedDict):
    id: _Id
    connection_info: dict[str, Any]


class Encryption(TypedDict, total=False):
    """Of a volume that is not encrypted: nothing."""

    encryption_key_id: str | None
    control_location: str | None
    provider: str | None


class _Snapshot(TypedDict, total=False):
    id: Required[_Id]
    volume_id: Required[_Id]
    status: Required[str]
    size: Required[Annotated[int, Meta(ge=0, le=MOST_GIB)]]
    name: str | None
    description: str | None
    metadata: dict[str, Any] | None
    # Without a zone: in UTC.
    created_at: datetime.datetime | None


class _Amounts(TypedDict):
    totalSnapshotsUsed: int
    maxTotalSnapshots: int


class _Limits(TypedDict):
    absolute: _Amounts


_SHAPES: dict[str, Any] = {
    "limits": _Limits,
    "volume": _Volume, "volumes": list[_Volume], "attachment": _Attachment, "attachments": list[_Attachment],
    "snapshot": _Snapshot, "snapshots": list[_Snapshot]}


def at_once(make: Callable[[], T]) -> T:
    """Make something with the token of the caller, in spite of a service that breaks down: whoever goes on with the
    operation after a pause has no token of the user any more. Raises VolumeServiceUnavailable, KeyManagerUnavailable.
    """
    for _again in range(CONF.cinder.http_retries):
        with contextlib.suppress(exception.VolumeServiceUnavailable, exception.KeyManagerUnavailable):
            return make()
        time.sleep(_PAUSE)
    return make()


def _page(limit: int, offset: int) -> dict[str, Any]:
    return {"limit": limit, "offset": offset, "sort": "created_at:desc"}


def check_user(ctx: RequestContext) -> None:
    """Without a token Cinder would be asked with Nova's own, which may see what everybody has. Raises Forbidden."""
    if not ctx.auth_token:
        raise exception.Forbidden("Volumes and their snapshots are asked for with a token of their project.")


@contextlib.contextmanager
def named_snapshot(uuid: str | None) -> Iterator[None]:
    """What is not found is this snapshot, if there is one in question. Raises SnapshotNotFound."""
    try:
        yield
    except exception.NotFound as error:
        if uuid is None:
            raise
        raise exception.SnapshotNotFound(snapshot_id=uuid) from error


def time_of(told: str | None) -> datetime.datetime | None:
    """Cinder tells it in UTC, and does not say so."""
    if told is None:
        return None
    made = datetime.datetime.fromisoformat(told)
    return made if made.tzinfo else made.replace(tzinfo=datetime.UTC)


class CinderApi:
    """With Nova's own rights, or with a caller's ``token``.

    All verbs raise VolumeServiceUnavailable (what they asked for may be done), Forbidden, and what is told of each.
    """

    def __init__(self) -> None:
        kind, name, interface = (*CONF.cinder.catalog_info.split(":"), "", "")[:3]
        where = {"service_type": kind, "service_name": name or None, "region_name": CONF.cinder.os_region_name,
                 "interface": _INTERFACES.get(interface, interface) or None}
        self._cinder = ServiceClient(GROUP, {key: value for key, value in where.items() if value}, ("/v3", "/v2"))

    # --- volumes -----------------------------------------------------------------------------------
    def volume(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Raw:
        """Raises VolumeNotFound."""
        return self._asked(ctx, "GET", f"/volumes/{uuid}", "volume", token, volume=uuid)  # type: ignore[no-any-return]

    def encryption(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Encryption:
        """Raises VolumeNotFound."""
        return self._asked(ctx, "GET", f"/volumes/{uuid}/encryption", token=token,  # type: ignore[no-any-return]
                           volume=uuid, shape=Encryption)

    def volumes_with(self, ctx: RequestContext, metadata: Mapping[str, str]) -> list[Raw]:
        """Those of all projects that have these metadata."""
        found = self._asked(ctx, "GET", "/volumes/detail", "volumes",
                            params={"all_tenants": 1, "metadata": json.dumps(metadata)})
        return [volume for volume in found if metadata.items() <= volume.get("metadata", {}).items()]

    def create_volume(self, ctx: RequestContext, wanted: Raw, waits: bool = False) -> Raw:
        """A volume of the caller, so with the caller's token; ``waits``: who does so for the answer. Raises
        InvalidVolume, QuotaLimit."""
        return self._asked(ctx, "POST", "/volumes", "volume", ctx.auth_token,  # type: ignore[no-any-return]
                           json={"volume": wanted}, waits=waits)

    def volumes(self, ctx: RequestContext, limit: int, offset: int) -> list[Raw]:
        """Those of the caller's project, with the caller's token, the newest first."""
        return self._asked(ctx, "GET", "/volumes/detail", "volumes", ctx.auth_token,  # type: ignore[no-any-return]
                           params=_page(limit, offset))

    def delete_volume(self, ctx: RequestContext, uuid: str, token: str | None = None) -> None:
        """With a ``token``, its user waits. Raises VolumeNotFound, InvalidVolume (it is in use)."""
        self._asked(ctx, "DELETE", f"/volumes/{uuid}", token=token, volume=uuid, waits=bool(token))

    def act(self, ctx: RequestContext, uuid: str, action: str) -> None:
        """Raises VolumeNotFound, InvalidVolume (its status does not allow it)."""
        self._asked(ctx, "POST", f"/volumes/{uuid}/action", json={action: {}}, volume=uuid)

    def reimage(self, ctx: RequestContext, uuid: str, image_id: str) -> None:
        """Have a reserved volume written anew. Raises VolumeNotFound, InvalidVolume (it is not reserved)."""
        self._asked(ctx, "POST", f"/volumes/{uuid}/action", volume=uuid, headers=_VERSION_OF_REIMAGE,
                    json={"os-reimage": {"image_id": image_id, "reimage_reserved": True}})

    def complete_migration(self, ctx: RequestContext, old: str, new: str, error: bool) -> None:
        """Have Cinder end the migration of a volume into ``new``, whose data it has from then on (not if ``error``).

        Raises VolumeNotFound, InvalidVolume (it is not being migrated there).
        """
        self._asked(ctx, "POST", f"/volumes/{old}/action", volume=old,
                    json={"os-migrate_volume_completion": {"new_volume": new, "error": error}})

    def complete_extension(self, ctx: RequestContext, uuid: str, error: bool) -> None:
        """Have Cinder end an extension that waits for the guest: the volume has its new size, unless ``error``.

        Raises VolumeNotFound, InvalidVolume (it does not wait).
        """
        self._asked(ctx, "POST", f"/volumes/{uuid}/action", volume=uuid, headers=_VERSION_OF_EXTENSION,
                    json={"os-extend_volume_completion": {"error": error}})

    # --- snapshots, with the caller's token ----------------------------------------------------------
    def snapshots(self, ctx: RequestContext, limit: int, offset: int) -> list[Raw]:
        """Those of the caller's project."""
        return self._asked(ctx, "GET", "/snapshots/detail", "snapshots", ctx.auth_token,  # type: ignore[no-any-return]
                           params=_page(limit, offset))

    def snapshot(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Raw:
        """Raises NotFound."""
        return self._asked(ctx, "GET", f"/snapshots/{uuid}", "snapshot", token)  # type: ignore[no-any-return]

    def room_for_snapshots(self, ctx: RequestContext) -> int | None:
        """How many more the caller's project may have; None: any number."""
        found = self._asked(ctx, "GET", "/limits", "limits", ctx.auth_token)["absolute"]
        most: int = found["maxTotalSnapshots"]
        return None if most < 0 else max(0, most - found["totalSnapshotsUsed"])

    def create_snapshot(self, ctx: RequestContext, volume: str, wanted: Mapping[str, Any],
                        waits: bool = False) -> Raw:
        """``waits``: the caller does so for the answer. Raises VolumeNotFound, InvalidVolume, QuotaLimit."""
        return self._asked(ctx, "POST", "/snapshots", "snapshot", ctx.auth_token,  # type: ignore[no-any-return]
                           json={"snapshot": {"volume_id": volume, **wanted}}, volume=volume, waits=waits)

    def delete_snapshot(self, ctx: RequestContext, uuid: str, token: str | None) -> None:
        """With a ``token``, its user waits. Raises NotFound, InvalidVolume (its status does not allow it)."""
        self._asked(ctx, "DELETE", f"/snapshots/{uuid}", token=token, waits=bool(token))

    # --- snapshots, with Nova's own rights -------------------------------------------------------------
    def snapshots_with(self, ctx: RequestContext, metadata: Mapping[str, str]) -> list[Raw]:
        """Those of all projects that have these metadata."""
        found = self._asked(ctx, "GET", "/snapshots/detail", "snapshots",
                            params={"all_tenants": 1, "metadata": json.dumps(metadata)})
        return [each for each in found if metadata.items() <= (each.get("metadata") or {}).items()]

    def update_snapshot(self, ctx: RequestContext, uuid: str, status: str) -> None:
        """Tell Cinder, which waits for it, how far its snapshot is. Raises NotFound, InvalidVolume (it does not)."""
        self._asked(ctx, "POST", f"/snapshots/{uuid}/action",
                    json={"os-update_snapshot_status": {"status": status, "progress": _OURS}})

    # --- attachments -------------------------------------------------------------------------------
    def attachments(self, ctx: RequestContext, instance_uuid: str, volume: str | None = None) -> list[Raw]:
        """Those of a server (to one volume)."""
        query = {"all_tenants": 1, "instance_id": instance_uuid, **({"volume_id": volume} if volume else {})}
        found = self._asked(ctx, "GET", "/attachments/detail", "attachments", params=query)
        return [each for each in found if each.get("instance") == instance_uuid
                and volume in (None, each.get("volume_id"))]

    def create_attachment(self, ctx: RequestContext, volume: str, instance_uuid: str,
                          connector: Mapping[str, Any] | None = None) -> Raw:
        """The volume is the server's; a host will use it, if there is a ``connector``: connection_info says how.

        Raises VolumeNotFound, InvalidVolume (it is somebody else's).
        """
        wanted = {"volume_uuid": volume, "instance_uuid": instance_uuid, "connector": connector}
        return self._asked(ctx, "POST", "/attachments", "attachment",  # type: ignore[no-any-return]
                           shape=_Connected if connector else None, json={"attachment": wanted}, volume=volume)

    def update_attachment(self, ctx: RequestContext, attachment: str, connector: Mapping[str, Any]) -> Raw:
        """A host will use the volume; connection_info says how. Raises InvalidVolume."""
        return self._asked(ctx, "PUT", f"/attachments/{attachment}", "attachment",  # type: ignore[no-any-return]
                           shape=_Connected, json={"attachment": {"connector": connector}})

    def complete_attachment(self, ctx: RequestContext, attachment: str) -> None:
        """The guest has the volume. Raises InvalidVolume."""
        self._asked(ctx, "POST", f"/attachments/{attachment}/action", json={"os-complete": {}})

    def delete_attachment(self, ctx: RequestContext, attachment: str) -> None:
        """The server does not have the volume any more; nor had it: fine."""
        with contextlib.suppress(exception.NotFound):
            # Without such a token Cinder asks Nova first whether the server still has the volume.
            self._asked(ctx, "DELETE", f"/attachments/{attachment}", headers={"X-Service-Token": self._own_token()})

    # --- requests ----------------------------------------------------------------------------------
    def _own_token(self) -> str:
        try:
            return self._cinder.token() or ""
        except Unreachable as error:
            raise exception.VolumeServiceUnavailable(reason=str(error)) from error

    def _asked(self, ctx: RequestContext, method: str, path: str, key: str = "", token: str | None = None,
               volume: str = "", headers: Mapping[str, str] | None = None, shape: Any = None, **more: Any) -> Any:
        """What the answer has under ``key``, in the shape that belongs to it, or all of it in this ``shape``; without
        either nothing is expected."""
        repeats = CONF.cinder.http_retries if method == "GET" else 0
        try:
            # Older releases want the project of the token in the path.
            project = ctx.project_id if token else self._cinder.project_id()
            answer = self._cinder.request(
                ctx, method, f"/v3/{project}{path}" if project else f"/v3{path}", token,
                {"OpenStack-API-Version": _VERSION, **(headers or {})}, connect_retries=repeats, **more)
            check(answer, volume)
            return decode_response(answer, shape or _SHAPES[key], key) if key or shape else None
        except Unreachable as error:
            raise exception.VolumeServiceUnavailable(reason=str(error)) from error
