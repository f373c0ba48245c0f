"""A client of Cinder's API (v3, microversion 3.44), used by conductors, and the conversion of its objects to Nova's."""

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Required, TypedDict, TypeVar

import msgspec
import requests
from msgspec import Meta

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.objects.base import whole
from nova.objects.images.image import Image
from nova.objects.volumes.volume import Volume, VolumeSnapshot
from nova.service_clients import ServiceClient, Unreachable, decode_response, error_message

GROUP = "cinder"
# Attachments exist since 3.27, and can be completed since 3.44.
_VERSION = "volume 3.44"
_VERSION_OF_REIMAGE = {"OpenStack-API-Version": "volume 3.68"}
_VERSION_OF_EXTENSION = {"OpenStack-API-Version": "volume 3.71"}
# Progress of a snapshot when Nova has finished its part. Cinder compares this value.
_PROGRESS = "90%"
# Maximum size of a volume.
MOST_GIB = 2**31 - 1
_INTERFACES = {"publicURL": "public", "internalURL": "internal", "adminURL": "admin"}

# Delay in seconds of the retries of retry_now().
_RETRY_DELAY = 1.0
_IMAGE_FIELDS = {"image_id": "id", "image_name": "name", "checksum": "checksum", "container_format": "container_format",
                 "disk_format": "disk_format"}
_IMAGE_NUMBERS = ("min_disk", "min_ram", "size")
_BY_STATUS = {401: exception.Forbidden, 403: exception.Forbidden, 404: exception.NotFound, 413: exception.QuotaLimit}

Raw = dict[str, Any]
T = TypeVar("T")

_Id = Annotated[str, Meta(min_length=1, max_length=64)]


class _VolumeAttachment(TypedDict, total=False):
    server_id: str | None
    attachment_id: str | None
    device: str | None


# Required fields of responses, and types of all fields that are read.
_Volume = TypedDict("_Volume", {
    "id": Required[_Id], "status": Required[str], "size": Required[Annotated[int, Meta(ge=0, le=MOST_GIB)]],
    "attachments": list[_VolumeAttachment], "metadata": dict[str, Any], "user_id": str | None, "name": str | None,
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
    """The encryption of a volume. All fields are missing if the volume is not encrypted."""

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
    # UTC, without a time zone.
    created_at: datetime.datetime | None


class _Amounts(TypedDict):
    totalSnapshotsUsed: int
    maxTotalSnapshots: int


class _Limits(TypedDict):
    absolute: _Amounts


_SHAPES: dict[str, Any] = {"limits": _Limits, "volume": _Volume, "volumes": list[_Volume], "attachment": _Attachment,
                           "attachments": list[_Attachment], "snapshot": _Snapshot, "snapshots": list[_Snapshot]}


def retry_now(create: Callable[[], T]) -> T:
    """Call ``create`` and retry it a few times while a service is unavailable. For requests with the caller's token,
    which a later retry of the operation would not have. Raises VolumeServiceUnavailable, KeyManagerUnavailable."""
    for _again in range(CONF.cinder.http_retries):
        with contextlib.suppress(exception.VolumeServiceUnavailable, exception.KeyManagerUnavailable):
            return create()
        time.sleep(_RETRY_DELAY)
    return create()


@contextlib.contextmanager
def convert_missing_snapshot(uuid: str | None) -> Iterator[None]:
    """Convert NotFound in the block to SnapshotNotFound of this snapshot, if given."""
    try:
        yield
    except exception.NotFound as error:
        if uuid is None:
            raise
        raise exception.SnapshotNotFound(snapshot_id=uuid) from error


def time_of(text: str | None) -> datetime.datetime | None:
    """Parse a time of Cinder's API, which is in UTC without a time zone."""
    if text is None:
        return None
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


class CinderApi:
    """A client of Cinder that uses Nova's own credentials, or a caller's ``token``. All methods raise
    VolumeServiceUnavailable (the request may have been executed), Forbidden, and the exceptions in their docstrings."""

    def __init__(self) -> None:
        kind, name, interface = (*CONF.cinder.catalog_info.split(":"), "", "")[:3]
        defaults = {"service_type": kind, "service_name": name or None, "region_name": CONF.cinder.os_region_name,
                    "interface": _INTERFACES.get(interface, interface) or None}
        self._cinder = ServiceClient(GROUP, {key: value for key, value in defaults.items() if value}, ("/v3", "/v2"))

    # --- volumes -----------------------------------------------------------------------------------
    def volume(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Raw:
        """Return a volume. Raises VolumeNotFound."""
        volume: Raw = self._request(ctx, "GET", f"/volumes/{uuid}", "volume", token, volume=uuid)
        if volume["id"] != uuid:  # MySQL ignores case, but attachments and events have the real id
            raise exception.VolumeNotFound(volume_id=uuid)
        return volume

    def encryption(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Encryption:
        """Return the encryption of a volume. Raises VolumeNotFound."""
        return self._request(ctx, "GET", f"/volumes/{uuid}/encryption", token=token,  # type: ignore[no-any-return]
                           volume=uuid, shape=Encryption)

    def having(self, ctx: RequestContext, kind: Literal["volumes", "snapshots"],
               metadata: Mapping[str, str]) -> list[Raw]:
        """Return the volumes or snapshots of all projects with these metadata."""
        items = self._request(ctx, "GET", f"/{kind}/detail", kind,
                              params={"all_tenants": 1, "metadata": json.dumps(metadata)})
        return [item for item in items if metadata.items() <= (item.get("metadata") or {}).items()]

    def create_volume(self, ctx: RequestContext, wanted: Raw, waits: bool = False) -> Raw:
        """Create a volume with the caller's token and return it. Raises InvalidVolume, QuotaLimit. ``waits``: True if a
        user waits for the response."""
        return self._request(ctx, "POST", "/volumes", "volume", ctx.auth_token,  # type: ignore[no-any-return]
                           json={"volume": wanted}, waits=waits)

    def page(self, ctx: RequestContext, kind: Literal["volumes", "snapshots"], limit: int, offset: int) -> list[Raw]:
        """Return volumes or snapshots of the caller's project, newest first."""
        return self._request(ctx, "GET", f"/{kind}/detail", kind, ctx.auth_token,  # type: ignore[no-any-return]
                             params={"limit": limit, "offset": offset, "sort": "created_at:desc"})

    def delete_volume(self, ctx: RequestContext, uuid: str, token: str | None = None) -> None:
        """Delete a volume. ``token``: of a waiting user. Raises VolumeNotFound, InvalidVolume (in use)."""
        self._request(ctx, "DELETE", f"/volumes/{uuid}", token=token, volume=uuid, waits=bool(token))

    def act(self, ctx: RequestContext, uuid: str, action: str, arguments: Mapping[str, Any] | None = None,
            headers: Mapping[str, str] | None = None) -> None:
        """Execute an action. Raises VolumeNotFound, InvalidVolume (wrong status)."""
        self._request(ctx, "POST", f"/volumes/{uuid}/action", json={action: arguments or {}}, volume=uuid,
                      headers=headers)

    def reimage(self, ctx: RequestContext, uuid: str, image_id: str) -> None:
        """Request that a reserved volume is rewritten from an image. Raises VolumeNotFound, InvalidVolume."""
        self.act(ctx, uuid, "os-reimage", {"image_id": image_id, "reimage_reserved": True}, _VERSION_OF_REIMAGE)

    def complete_migration(self, ctx: RequestContext, old: str, new: str, error: bool) -> None:
        """Complete the migration of volume ``old`` into ``new``, or abort it if ``error``. Raises VolumeNotFound,
        InvalidVolume (no such migration)."""
        self.act(ctx, old, "os-migrate_volume_completion", {"new_volume": new, "error": error})

    def complete_extension(self, ctx: RequestContext, uuid: str, error: bool) -> None:
        """Complete an extension that waits for the guest, or abort it if ``error``. Raises VolumeNotFound,
        InvalidVolume (no such extension)."""
        self.act(ctx, uuid, "os-extend_volume_completion", {"error": error}, _VERSION_OF_EXTENSION)

    # --- snapshots, with the caller's token ----------------------------------------------------------
    def snapshot(self, ctx: RequestContext, uuid: str, token: str | None = None) -> Raw:
        """Return a snapshot. Raises NotFound."""
        snapshot: Raw = self._request(ctx, "GET", f"/snapshots/{uuid}", "snapshot", token)
        if snapshot["id"] != uuid:
            raise exception.SnapshotNotFound(snapshot_id=uuid)
        return snapshot

    def free_snapshot_quota(self, ctx: RequestContext) -> int | None:
        """Return the number of snapshots that the caller's project may still create, or None if unlimited."""
        limits = self._request(ctx, "GET", "/limits", "limits", ctx.auth_token)["absolute"]
        maximum: int = limits["maxTotalSnapshots"]
        return None if maximum < 0 else max(0, maximum - limits["totalSnapshotsUsed"])

    def create_snapshot(self, ctx: RequestContext, volume: str, wanted: Mapping[str, Any], waits: bool = False) -> Raw:
        """Create a snapshot with the caller's token and return it. Raises VolumeNotFound, InvalidVolume, QuotaLimit.
        ``waits``: True if a user waits for the response."""
        return self._request(ctx, "POST", "/snapshots", "snapshot", ctx.auth_token,  # type: ignore[no-any-return]
                           json={"snapshot": {"volume_id": volume, **wanted}}, volume=volume, waits=waits)

    def delete_snapshot(self, ctx: RequestContext, uuid: str, token: str | None) -> None:
        """Delete a snapshot. ``token``: of a waiting user. Raises NotFound, InvalidVolume (wrong status)."""
        self._request(ctx, "DELETE", f"/snapshots/{uuid}", token=token, waits=bool(token))

    # --- snapshots, with Nova's own credentials --------------------------------------------------------
    def update_snapshot(self, ctx: RequestContext, uuid: str, status: str) -> None:
        """Set the status of an assisted snapshot. Raises NotFound, InvalidVolume (Cinder does not wait for Nova)."""
        self._request(ctx, "POST", f"/snapshots/{uuid}/action",
                    json={"os-update_snapshot_status": {"status": status, "progress": _PROGRESS}})

    # --- attachments -------------------------------------------------------------------------------
    def attachments(self, ctx: RequestContext, instance_uuid: str, volume: str | None = None) -> list[Raw]:
        """Return the attachments of a server, or only those to ``volume``."""
        query = {"all_tenants": 1, "instance_id": instance_uuid, **({"volume_id": volume} if volume else {})}
        attachments = self._request(ctx, "GET", "/attachments/detail", "attachments", params=query)
        return [attachment for attachment in attachments if attachment.get("instance") == instance_uuid
                and volume in (None, attachment.get("volume_id"))]

    def create_attachment(self, ctx: RequestContext, volume: str, instance_uuid: str,
                          connector: Mapping[str, Any] | None = None) -> Raw:
        """Create an attachment, which reserves the volume for a server, and return it. With a ``connector`` of a host
        the result has connection_info. Raises VolumeNotFound, InvalidVolume (in use)."""
        wanted = {"volume_uuid": volume, "instance_uuid": instance_uuid, "connector": connector}
        return self._request(ctx, "POST", "/attachments", "attachment",  # type: ignore[no-any-return]
                           shape=_Connected if connector else None, json={"attachment": wanted}, volume=volume)

    def update_attachment(self, ctx: RequestContext, attachment: str, connector: Mapping[str, Any]) -> Raw:
        """Connect an attachment to a host and return it with connection_info. Raises InvalidVolume."""
        return self._request(ctx, "PUT", f"/attachments/{attachment}", "attachment",  # type: ignore[no-any-return]
                           shape=_Connected, json={"attachment": {"connector": connector}})

    def complete_attachment(self, ctx: RequestContext, attachment: str) -> None:
        """Mark an attachment as attached. Raises InvalidVolume."""
        self._request(ctx, "POST", f"/attachments/{attachment}/action", json={"os-complete": {}})

    def delete_attachment(self, ctx: RequestContext, attachment: str) -> None:
        """Delete an attachment. Succeeds if it does not exist."""
        with contextlib.suppress(exception.NotFound):
            # Without a service token Cinder would first query Nova for the server's volumes.
            self._request(ctx, "DELETE", f"/attachments/{attachment}", service_token=True)

    # --- requests ----------------------------------------------------------------------------------
    def _request(self, ctx: RequestContext, method: str, path: str, key: str = "", token: str | None = None,
                 volume: str = "", headers: Mapping[str, str] | None = None, shape: Any = None,
                 service_token: bool = False, **more: Any) -> Any:
        """Send a request and return the value under ``key`` of the response, checked against its shape. ``shape``:
        replaces the shape of ``key``, or is that of the whole response; without both the response is ignored."""
        retries = CONF.cinder.http_retries if method == "GET" else 0
        try:
            if service_token:
                headers = {"X-Service-Token": self._cinder.token() or ""}
            # Older releases require the project of the token in the path.
            project = ctx.project_id if token else self._cinder.project_id()
            response = self._cinder.request(
                ctx, method, f"/v3/{project}{path}" if project else f"/v3{path}", token,
                {"OpenStack-API-Version": _VERSION, **(headers or {})}, connect_retries=retries, **more)
            _check(response, volume)
            return decode_response(response, shape or _SHAPES[key], key) if key or shape else None
        except Unreachable as error:
            raise exception.VolumeServiceUnavailable(reason=str(error)) from error


def _check(response: requests.Response, volume: str = "") -> None:
    """Raise the exception for an error response. ``volume``: the volume that is missing if the status is 404. Raises
    VolumeNotFound, NotFound, InvalidVolume, Forbidden, QuotaLimit, VolumeServiceUnavailable."""
    status = response.status_code
    if status < 300:
        return
    message = error_message(response, "volume")
    if status == 404 and volume:
        raise exception.VolumeNotFound(volume_id=volume)
    if status in (400, 409):
        raise exception.InvalidVolume(reason=message.removeprefix("Invalid volume: "))
    if status in _BY_STATUS:
        raise _BY_STATUS[status](message)
    raise exception.VolumeServiceUnavailable(reason=f"the service responded with status {status}")


# --- conversion --------------------------------------------------------------------------------------
def to_volume(raw: Raw, project_id: str) -> Volume:
    """Convert a volume of Cinder's API. ``project_id``: used if the response has no project."""
    return Volume(uuid=raw["id"], project_id=raw.get("os-vol-tenant-attr:tenant_id") or project_id, size_gb=raw["size"],
                  user_id=raw.get("user_id") or "", name=raw.get("name") or "", status=raw["status"],
                  volume_type=raw.get("volume_type"), availability_zone=raw.get("availability_zone"),
                  multiattach=bool(raw.get("multiattach")), bootable=raw.get("bootable") == "true",
                  encrypted=bool(raw.get("encrypted")), image=_image(raw.get("volume_image_metadata") or {}))


def _image(metadata: Mapping[str, Any]) -> Image | None:
    """Convert a volume's volume_image_metadata, in which all values are strings, some written by users."""
    if not metadata.get("image_id"):
        return None
    fields: dict[str, Any] = {name: str(metadata[key]) for key, name in _IMAGE_FIELDS.items() if metadata.get(key)}
    numbers = {name: whole(str(metadata.get(name, ""))) for name in _IMAGE_NUMBERS}
    fields.update({name: number for name, number in numbers.items() if number is not None})
    return Image(**fields, properties={
        key: str(value) for key, value in metadata.items() if key not in _IMAGE_FIELDS and key not in _IMAGE_NUMBERS})


def to_snapshot(raw: Raw) -> VolumeSnapshot:
    return VolumeSnapshot(uuid=raw["id"], volume_id=raw["volume_id"], size_gb=raw["size"], status=raw["status"],
                          name=raw.get("name") or "", description=raw.get("description") or "",
                          created_at=time_of(raw.get("created_at")))


def to_full_volume(raw: Raw, ctx: RequestContext) -> Volume:
    """Convert a volume, with its first attachment."""
    attachment: Raw = next(iter(raw.get("attachments") or ()), {})
    return msgspec.structs.replace(to_volume(raw, ctx.project_id or ""), description=raw.get("description") or "",
                                   metadata={key: str(value) for key, value in (raw.get("metadata") or {}).items()},
                                   snapshot_id=raw.get("snapshot_id"), created_at=time_of(raw.get("created_at")),
                                   instance_uuid=attachment.get("server_id"), device_name=attachment.get("device"))
