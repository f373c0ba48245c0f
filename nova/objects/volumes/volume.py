"""Volumes, their attachments and connections to a hypervisor, and their snapshots."""

import datetime
from typing import Any

import msgspec

from nova.objects.base import Object
from nova.objects.images.image import Image

# Connection data of a volume back end, flat, with driver_volume_type. Only the host part of the same back end
# interprets it.
ConnectionInfo = dict[str, Any]

# Statuses of a volume. From reserved to detaching it belongs to a server.
AVAILABLE, RESERVED, ATTACHING, IN_USE = "available", "reserved", "attaching", "in-use"
DETACHING, DELETING, ERROR = "detaching", "deleting", "error"


class VolumeEncryption(Object, kw_only=True):
    """Encryption of a volume (LUKS 1, by the hypervisor) with the secret ``key_id`` of the key manager.
    ``encrypted_passphrase``: the passphrase, encrypted by conductors; only the database contains it, elsewhere ""."""

    key_id: str
    encrypted_passphrase: str = msgspec.field(default="", name="sealed")


def journal_without_secrets(value: Any) -> Any:
    """Return plain journal values without the encrypted passphrases in them."""
    if isinstance(value, dict):
        return {name: journal_without_secrets(item) for name, item in value.items() if name != "sealed"}
    return [journal_without_secrets(item) for item in value] if isinstance(value, list) else value


class VolumeKey(Object, kw_only=True):
    """The passphrase of encrypted volumes, from the key manager. Only in orders and memory of hosts; never logged."""

    key_id: str
    passphrase: str

    def __repr__(self) -> str:
        return f"VolumeKey(key_id={self.key_id!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("key_id", self.key_id)]


class VolumeConnection(Object, kw_only=True):
    """The connection of a host's hypervisor to a volume, as returned by ``HostVolumes.connect``.

    ``protocol``: type of ``path``: "file" (an absolute path), "block" (a device of the host) or a protocol of the
    hypervisor ("rbd", "iscsi": ``path`` is the name of the image or target and ``hosts`` its servers as (name, port);
    "vmdk": ``path`` is the id of the machine in vCenter whose only disk is the volume). ``format``: raw or qcow2; the
    hypervisor does not probe it. ``below``: backing files of a "file" with snapshots, nearest first, with their
    formats; no other files are read. ``auth_user`` and ``secret_uuid``: credentials stored in the hypervisor.
    ``limits``: by libvirt's names (total_iops_sec, ...). ``shareable``: several guests may use it simultaneously.
    ``serial``: serial number in the guest. ``key``: the hypervisor decrypts the volume with it (raw)."""

    volume_id: str
    protocol: str = "file"
    path: str = ""
    format: str = "raw"
    below: list[tuple[str, str]] = []
    hosts: list[tuple[str, str]] = []
    auth_user: str | None = None
    secret_uuid: str | None = None
    limits: dict[str, int] = {}
    read_only: bool = False
    shareable: bool = False
    discard: bool = False
    serial: str = ""
    key: VolumeKey | None = None


class Volume(Object, kw_only=True):
    """A volume of the embedded back end. ``host``: host with the data (None: no data yet, or the pool is ``shared`` by
    all hosts). ``generation``: part of the name of the data; increases when another host is chosen for a volume that no
    guest has used yet. ``image``: source of the data. ``instance_uuid``, ``attachment_id``: the owner. ``attached_at``:
    time of the current attachment, ``written_at``: time of the first attachment."""

    id: int = 0
    uuid: str
    project_id: str
    user_id: str = ""
    name: str = ""
    description: str = ""
    size_gb: int
    status: str = AVAILABLE
    volume_type: str | None = None
    availability_zone: str | None = None
    metadata: dict[str, str] = {}
    multiattach: bool = False  # several servers may attach it (external service only)
    encrypted: bool = False  # the volume and its clones are encrypted (external service only)
    origin: str | None = None  # volume of the snapshot from which this volume is to be created
    # The snapshot from which the volume was created (external service only).
    snapshot_id: str | None = None
    encryption: VolumeEncryption | None = None
    bootable: bool = False
    image: Image | None = None
    host: str | None = None
    shared: bool = False
    generation: int = 0
    format: str = "raw"
    instance_uuid: str | None = None
    attachment_id: str | None = None
    device_name: str | None = None
    created_at: datetime.datetime | None = None
    attached_at: datetime.datetime | None = None
    written_at: datetime.datetime | None = None

    def connection_info(self) -> ConnectionInfo:
        """Return the connection data for the host part of the embedded back end."""
        fresh = self.written_at is None
        return msgspec.to_builtins(LocalConnection(  # type: ignore[no-any-return]
            volume_id=self.uuid, generation=self.generation, format=self.format, size_gb=self.size_gb, fresh=fresh,
            image=self.image if fresh else None))


class VolumeContent(Object, kw_only=True):
    """The data of an embedded volume that are being replaced; fields as in Volume."""

    generation: int
    image: Image | None = None
    written_at: datetime.datetime | None = None


class Attachment(Object, kw_only=True):
    """An attached volume as shown to users. ``bdm_uuid``: id of the server's block device."""

    volume_id: str
    instance_uuid: str
    device_name: str | None = None
    attachment_id: str | None = None
    bdm_uuid: str | None = None
    delete_on_termination: bool = False
    tag: str | None = None


class VolumeCounters(Object, kw_only=True):
    """Requests and bytes that a guest has read from and written to a volume since its start."""

    instance_uuid: str
    volume_id: str
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int


class VolumeRemoval(Object, kw_only=True):
    """The removal of the data of a ``generation`` of a volume from ``host`` ("": from the shared pool)."""

    volume_uuid: str
    generation: int
    host: str


class LocalConnection(Object, kw_only=True, tag_field="driver_volume_type", tag="local"):
    """The connection_info of the embedded back end. ``fresh``: no guest has used the volume yet, so missing data are
    created, from ``image`` if set. Otherwise missing data are an error."""

    volume_id: str
    generation: int
    format: str = "raw"
    size_gb: int
    fresh: bool = False
    image: Image | None = None


class AttachmentChanges(Object, kw_only=True):
    """Changes of an attachment by a user; None: unchanged."""

    delete_on_termination: bool | None = None


class VolumeSnapshot(Object, kw_only=True):
    """A snapshot. ``status``: status of the volume service: creating, available, deleting, error and others."""

    uuid: str
    volume_id: str
    size_gb: int
    status: str
    name: str = ""
    description: str = ""
    created_at: datetime.datetime | None = None


class SnapshotRequest(Object, kw_only=True):
    """Request for a snapshot. ``force``: also of an attached volume."""

    volume_id: str
    force: bool = False
    name: str = ""
    description: str = ""
