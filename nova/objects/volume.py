"""Volumes: disks that outlive servers, their attachments, and what a hypervisor needs to use one."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from nova.objects.base import Object
from nova.objects.image import Image

# What a back end says of a connection, flat, with driver_volume_type; only its own host half understands the rest.
ConnectionInfo = dict[str, Any]

# The states of a volume. From reserved to detaching it belongs to one server.
AVAILABLE = "available"
RESERVED = "reserved"
ATTACHING = "attaching"
IN_USE = "in-use"
DETACHING = "detaching"
DELETING = "deleting"
ERROR = "error"


class VolumeEncryption(Object, kw_only=True):
    """That a volume is encrypted (LUKS 1, by the hypervisor), and by which secret of the key manager (``key_id``).

    ``sealed``: its passphrase as only conductors can read it. It stays with them: "" wherever else.
    """

    key_id: str
    sealed: str = ""


def journal_without_secrets(told: Any) -> Any:
    """Plain values (what a journal has) without the passphrases that are sealed in them."""
    if isinstance(told, dict):
        return {name: journal_without_secrets(value) for name, value in told.items() if name != "sealed"}
    return [journal_without_secrets(value) for value in told] if isinstance(told, list) else told


class VolumeKey(Object, kw_only=True):
    """The passphrase of the volumes that are encrypted by a secret of the key manager. It is in orders and in the
    memory of hosts, and is never shown."""

    key_id: str
    passphrase: str

    def __repr__(self) -> str:
        return f"VolumeKey(key_id={self.key_id!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("key_id", self.key_id)]


class VolumeConnection(Object, kw_only=True):
    """How the hypervisor of one host reaches a volume there: what ``HostVolumes.connect`` returns.

    ``protocol`` says what ``path`` is: "file" (an absolute path), "block" (the path of a device of the host) or the
    name of a protocol that the hypervisor speaks itself ("rbd", "iscsi": then ``path`` is the image's or the target's
    name and ``hosts`` are its servers as (name, port)). ``format`` is told, so that nothing is probed: raw or qcow2.
    ``below`` has the files that a "file" with snapshots stands on, nearest first, each with its format; no others are
    read.
    ``auth_user`` and ``secret_uuid`` name credentials that the hypervisor keeps; ``limits`` has libvirt's names
    (total_iops_sec, ...). ``shareable``: several guests may have it at once. ``serial`` is what the guest sees.
    ``key``: the hypervisor decrypts it with this (its format is raw then).
    """

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
    """A volume of the embedded back end.

    ``host`` keeps its data (None: it has none yet, or the pool is ``shared`` by all hosts), under a name that
    ``generation`` is part of: a number that grows whenever a place is chosen for a volume that no guest had yet.
    ``image`` is what it was or will be made from. ``instance_uuid`` and ``attachment_id`` say to whom it belongs,
    ``attached_at`` since when a guest has it, ``written_at`` when one had it first.
    """

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
    # Several servers may have it (of a service outside alone).
    multiattach: bool = False
    # So are its data, and those of what is made from it (of a service outside alone).
    encrypted: bool = False
    # The volume of the snapshot that it is to be made from.
    origin: str | None = None
    # The snapshot that it was made from (of a service outside alone).
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
        """What the host half of the embedded back end is told."""
        fresh = self.written_at is None
        return msgspec.to_builtins(LocalConnection(  # type: ignore[no-any-return]
            volume_id=self.uuid, generation=self.generation, format=self.format, size_gb=self.size_gb, fresh=fresh,
            image=self.image if fresh else None))


class VolumeContent(Object, kw_only=True):
    """Which data an embedded volume has, while others are made to take their place; fields as those of Volume."""

    generation: int
    image: Image | None = None
    written_at: datetime.datetime | None = None


class Attachment(Object, kw_only=True):
    """A volume in a server, as users see it. ``bdm_uuid`` is the id of the server's block device."""

    volume_id: str
    instance_uuid: str
    device_name: str | None = None
    attachment_id: str | None = None
    bdm_uuid: str | None = None
    delete_on_termination: bool = False
    tag: str | None = None


class VolumeCounters(Object, kw_only=True):
    """What a guest has done with a volume since it was started: requests, and bytes."""

    instance_uuid: str
    volume_id: str
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int


class VolumeRemoval(Object, kw_only=True):
    """The data of this ``generation`` of a volume is to go from ``host`` ("": from the shared pool)."""

    volume_uuid: str
    generation: int
    host: str


class LocalConnection(Object, kw_only=True, tag_field="driver_volume_type", tag="local"):
    """The connection_info of the embedded back end: which data of the pool, and what they are.

    ``fresh``: no guest had the volume yet, so that its data are made if they are not there, from ``image`` if it
    has one. Data that a guest had and that are missing are an error.
    """

    volume_id: str
    generation: int
    format: str = "raw"
    size_gb: int
    fresh: bool = False
    image: Image | None = None


class AttachmentChanges(Object, kw_only=True):
    """What a user may change of an attachment; None leaves it as it is."""

    delete_on_termination: bool | None = None
