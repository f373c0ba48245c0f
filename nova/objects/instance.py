"""An instance: everything that is always read together sits together, on one row."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from nova import exception
from nova.objects import states
from nova.objects.base import Object
from nova.objects.dedicated_resources.numa import GuestTopology
from nova.objects.dedicated_resources.pci import GuestDevice
from nova.objects.device_address import DeviceAddresses
from nova.objects.flavor import Flavor
from nova.objects.image import Image
from nova.objects.network import VIF, NetworkRequest
from nova.objects.share import ACTIVE, INACTIVE, ShareMapping
from nova.objects.volume import ConnectionInfo, VolumeConnection, VolumeEncryption

# The items of system_metadata with the names that the owner of a server had when it was created.
OWNER_USER_NAME, OWNER_PROJECT_NAME = "owner_user_name", "owner_project_name"


class Fault(Object, kw_only=True):
    code: int
    message: str
    details: str = ""
    created: datetime.datetime


class BlockDevice(Object, kw_only=True):
    """A disk of a server. ``source``: image, blank (ephemeral, swap), volume or snapshot; ``destination``: local or
    volume.

    A volume has a ``device_name`` that lasts, and once the back end gave it to the server an ``attachment_id`` and
    ``connection_info`` (what the back end says of it). ``connection`` is filled on a host, before its hypervisor
    driver gets to see the device; it is never stored. ``replaces``: the uuid of the device whose place it is to take;
    until then the guest does not have it. ``serial``: what the guest knows the disk by, where that is not the id of
    the volume: one that took the place of another is the same disk for the guest. ``encryption``: the volume is
    encrypted.
    """

    source: str
    destination: str = "local"
    boot_index: int | None = None
    device_name: str | None = None
    image_id: str | None = None
    volume_id: str | None = None
    snapshot_id: str | None = None
    size_gb: int | None = None
    guest_format: str | None = None
    disk_bus: str | None = None
    device_type: str | None = None
    delete_on_termination: bool = True
    tag: str | None = None
    uuid: str | None = None
    volume_type: str | None = None
    # Other servers may have the volume, too.
    multiattach: bool = False
    attachment_id: str | None = None
    connection_info: ConnectionInfo = {}
    connection: VolumeConnection | None = None
    replaces: str | None = None
    serial: str | None = None
    encryption: VolumeEncryption | None = None

    @property
    def is_volume(self) -> bool:
        """Also one that is yet to be made."""
        return self.destination == "volume"

    def swapped(self, by: BlockDevice, keeps_id: bool) -> BlockDevice:
        """This device once the volume of ``by`` has taken the place of its own, whose id that has from then on
        (``keeps_id``). It is the same disk for the guest.
        """
        known_by = self.serial or self.volume_id
        volume_id = self.volume_id if keeps_id else by.volume_id
        origin = {} if keeps_id else {"source": "volume", "image_id": None, "snapshot_id": None}
        return msgspec.structs.replace(
            self, volume_id=volume_id, size_gb=by.size_gb or self.size_gb, attachment_id=by.attachment_id,
            connection_info={**by.connection_info, "volume_id": volume_id}, connection=by.connection,
            multiattach=by.multiattach, encryption=by.encryption,
            serial=known_by if known_by != volume_id else None, **origin)

    @property
    def is_ephemeral(self) -> bool:
        return self.source == "blank" and self.destination == "local" and self.guest_format != "swap"


def root_volume(devices: Iterable[BlockDevice]) -> BlockDevice | None:
    """The volume that a server with these boots from."""
    return next((device for device in devices if device.boot_index == 0 and device.is_volume), None)


def disk_names(devices: Iterable[BlockDevice]) -> list[str]:
    """What tells each disk of a server from the others on every host: the serial number or the id of its volume, else
    root, swap or ephemeral0, ephemeral1 and so on ("": a volume that is yet to be made)."""
    names: list[str] = []
    for device in devices:
        if device.is_volume:
            names.append(device.serial or device.volume_id or "")
        elif device.is_ephemeral:
            names.append(f"ephemeral{sum(name.startswith('ephemeral') for name in names)}")
        else:
            names.append("swap" if device.guest_format == "swap" else "root")
    return names


def with_ways(devices: Iterable[BlockDevice], ways: Iterable[BlockDevice]) -> list[BlockDevice]:
    """These devices, reached as those of ``ways`` that are the same ones are."""
    known = {way.uuid: way for way in ways}
    return [msgspec.structs.replace(device, attachment_id=known[device.uuid].attachment_id,
                                    connection_info=known[device.uuid].connection_info)
            if device.uuid in known else device for device in devices]


def with_kept_keys(devices: Iterable[BlockDevice], known: Iterable[BlockDevice]) -> list[BlockDevice]:
    """These devices with the keys that are kept of them, as ``known`` has them: what a journal says of a key may be
    from before it was encrypted anew."""
    kept = {(each.uuid, each.encryption.key_id): each.encryption for each in known if each.encryption}
    return [msgspec.structs.replace(device, encryption=kept.get(
        (device.uuid, device.encryption.key_id), device.encryption)) if device.encryption else device
        for device in devices]


def without_secrets(instance: Instance) -> Instance:
    """The server for those who have no use for what only conductors can read: its password and the keys of its volumes.
    """
    if instance.encrypted_pass is None and not any(device.encryption for device in instance.block_devices):
        return instance
    return msgspec.structs.replace(instance, encrypted_pass=None, block_devices=[
        msgspec.structs.replace(device, encryption=msgspec.structs.replace(device.encryption, sealed=""))
        if device.encryption else device for device in instance.block_devices])


class Key(Object, kw_only=True):
    """The public key given to the guest (a copy: the key pair may be deleted later)."""

    name: str
    type: str = "ssh"
    public_key: str
    fingerprint: str = ""


class Personality(Object, kw_only=True):
    """A file to inject; ``contents`` is base64 text."""

    path: str
    contents: str


class Instance(Object, kw_only=True):
    id: int = 0
    uuid: str
    project_id: str
    user_id: str
    display_name: str
    display_description: str | None = None
    hostname: str
    vm_state: str = states.BUILDING
    task_state: str | None = None
    power_state: int = states.NOSTATE
    progress: int = 0
    host: str | None = None
    node: str | None = None
    availability_zone: str | None = None
    pinned_availability_zone: str | None = None
    flavor: Flavor
    image: Image | None = None
    image_ref: str = ""
    kernel_id: str = ""
    ramdisk_id: str = ""
    key: Key | None = None
    user_data: str | None = None
    metadata: dict[str, str] = {}
    system_metadata: dict[str, str] = {}
    tags: list[str] = []
    security_groups: list[str] = []
    requested_networks: list[NetworkRequest] | None = None
    network_info: list[VIF] = []
    block_devices: list[BlockDevice] = []
    shares: list[ShareMapping] | None = None
    personality: list[Personality] = []
    config_drive: bool = False
    disk_config: str = "MANUAL"
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    launch_index: int = 0
    reservation_id: str = ""
    root_device_name: str = "/dev/vda"
    locked_by: str | None = None
    locked_reason: str | None = None
    # In an order to a host that needs it; conductors keep it encrypted (nova.conductor.vault).
    admin_pass: str | None = None
    encrypted_pass: str | None = None
    # Of the body of the request that it was made by, if that had a name (Idempotency-Key).
    request_digest: str | None = None
    trusted_certs: list[str] | None = None
    scheduler_hints: dict[str, Any] = {}
    server_group: str | None = None
    # What it has of its host's NUMA cells and PCI devices; None: nothing for itself.
    numa_topology: GuestTopology | None = None
    pci_devices: list[GuestDevice] | None = None
    # As its host has told; None: it has not.
    device_addresses: DeviceAddresses | None = None
    fault: Fault | None = None
    # The action that holds the instance (its operation is in task_state), if any.
    action_uuid: str | None = None
    created_at: datetime.datetime
    updated_at: datetime.datetime | None = None
    launched_at: datetime.datetime | None = None
    terminated_at: datetime.datetime | None = None
    # Its user deleted it and may have it back; such a server counts nothing against its project.
    soft_deleted_at: datetime.datetime | None = None
    deleted: bool = False

    @property
    def locked(self) -> bool:
        return self.locked_by is not None

    @property
    def status(self) -> str:
        return states.STATUS[states.DELETED]["default"] if self.deleted else states.status(
            self.vm_state, self.task_state)

    @property
    def host_id(self) -> str:
        """An id of the host that differs per project; "" without a host."""
        if not self.host:
            return ""
        return hashlib.sha224((self.project_id + self.host).encode()).hexdigest()

    def name_by(self, template: str) -> str:
        """The name of the domain on the hypervisor; ``template`` is [DEFAULT]instance_name_template."""
        return template % {"uuid": self.uuid, "id": self.id} if "%(" in template else template % self.id

    @property
    def volume_backed(self) -> bool:
        return root_volume(self.block_devices) is not None

    @property
    def volumes(self) -> list[BlockDevice]:
        """The volumes that the server has, or is to have, without those that are to take the place of others."""
        return [disk for disk in self.block_devices if disk.is_volume and disk.volume_id and not disk.replaces]

    def volume(self, volume_id: str) -> BlockDevice | None:
        """That one of them, if the server has it."""
        return next((disk for disk in self.volumes if disk.volume_id == volume_id), None)

    def volume_now(self, device: BlockDevice) -> BlockDevice | None:
        """The same device as the server has it now; None: it has it no longer."""
        return next((disk for disk in self.volumes if disk.uuid == device.uuid), None)

    def attached(self, volume_id: str) -> BlockDevice:
        """That one of them. Raises VolumeNotAttached."""
        return self._attached(self.volume(volume_id), volume_id)

    def attached_now(self, device: BlockDevice) -> BlockDevice:
        """The same device as the server has it now. Raises VolumeNotAttached."""
        return self._attached(self.volume_now(device), device.volume_id)

    def _attached(self, found: BlockDevice | None, volume_id: str | None) -> BlockDevice:
        if found is None:
            raise exception.VolumeNotAttached(instance_uuid=self.uuid, volume_id=volume_id)
        return found

    def share(self, share_id: str) -> ShareMapping | None:
        """How the server has the share, if it does."""
        return next((mapping for mapping in self.shares or () if mapping.share_id == share_id), None)

    @property
    def usable_shares(self) -> list[ShareMapping]:
        """Those that its guest is to have when it runs."""
        return [mapping for mapping in self.shares or () if mapping.status == INACTIVE]

    @property
    def runs(self) -> bool:
        """Whether its guest has a process, as far as is known."""
        return self.power_state in (states.RUNNING, states.POWER_PAUSED)

    def status_of(self, mapping: ShareMapping) -> str:
        """What users are shown: a share is active while the guest runs with it."""
        return ACTIVE if mapping.status == INACTIVE and self.runs else mapping.status
