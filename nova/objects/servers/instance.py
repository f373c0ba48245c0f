"""Instances, with all data that is always read together with them in one database row."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import Object
from nova.objects.dedicated_resources.numa import GuestTopology
from nova.objects.dedicated_resources.pci import GuestDevice
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, NetworkRequest
from nova.objects.servers import states
from nova.objects.volumes.share import ACTIVE, INACTIVE, ShareMapping
from nova.objects.volumes.volume import ConnectionInfo, VolumeConnection, VolumeEncryption

# Keys in system_metadata: names of the server's owner at its creation.
OWNER_USER_NAME, OWNER_PROJECT_NAME = "owner_user_name", "owner_project_name"


class Fault(Object, kw_only=True):
    code: int
    message: str
    details: str = ""
    created: datetime.datetime


class BlockDevice(Object, kw_only=True):
    """A disk of a server. ``source``: image, blank (ephemeral, swap), volume or snapshot. ``destination``: local or
    volume.

    A volume has a permanent ``device_name`` and, after it was attached, an ``attachment_id`` and ``connection_info``
    (from the volume service). ``connection`` is filled on the host for the hypervisor driver and never stored.
    ``replaces``: uuid of the device that this device is to replace; before that, the guest does not have this device.
    ``serial``: serial number of the disk in the guest, if it is not the volume id (a swapped volume keeps the serial
    number of the volume that it replaced). ``encryption``: set if the volume is encrypted."""

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
    # Other servers may attach the volume, too (multi-attach).
    multiattach: bool = False
    attachment_id: str | None = None
    connection_info: ConnectionInfo = {}
    connection: VolumeConnection | None = None
    replaces: str | None = None
    serial: str | None = None
    encryption: VolumeEncryption | None = None

    @property
    def is_volume(self) -> bool:
        """Return True if the disk is a volume, even if the volume does not exist yet."""
        return self.destination == "volume"

    def swapped(self, by: BlockDevice, keeps_id: bool) -> BlockDevice:
        """Return this device after its volume is replaced by the volume of ``by``. With ``keeps_id`` the new volume
        takes the id of the old one. The guest sees the same disk."""
        serial = self.serial or self.volume_id
        volume_id = self.volume_id if keeps_id else by.volume_id
        origin = {} if keeps_id else {"source": "volume", "image_id": None, "snapshot_id": None}
        return msgspec.structs.replace(
            self, volume_id=volume_id, size_gb=by.size_gb or self.size_gb, attachment_id=by.attachment_id,
            connection_info={**by.connection_info, "volume_id": volume_id}, connection=by.connection,
            multiattach=by.multiattach, encryption=by.encryption,
            serial=serial if serial != volume_id else None, **origin)

    @property
    def is_ephemeral(self) -> bool:
        return self.source == "blank" and self.destination == "local" and self.guest_format != "swap"


def root_volume(devices: Iterable[BlockDevice]) -> BlockDevice | None:
    """Return the volume from which a server with these devices boots."""
    return next((device for device in devices if device.boot_index == 0 and device.is_volume), None)


def disk_names(devices: Iterable[BlockDevice]) -> list[str]:
    """Return a unique name for each disk: serial number or id of a volume, root, swap, ephemeral0, ephemeral1 and so
    on. "" for a volume that does not exist yet."""
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
    """Return the devices with the connections of the devices in ``ways`` with the same uuid."""
    connected = {way.uuid: way for way in ways}
    return [msgspec.structs.replace(device, attachment_id=connected[device.uuid].attachment_id,
                                    connection_info=connected[device.uuid].connection_info)
            if device.uuid in connected else device for device in devices]


def with_current_keys(devices: Iterable[BlockDevice], current: Iterable[BlockDevice]) -> list[BlockDevice]:
    """Return the devices with the encrypted keys of the same devices in ``current``: the journal may have outdated
    copies."""
    keys = {(device.uuid, device.encryption.key_id): device.encryption for device in current if device.encryption}
    return [msgspec.structs.replace(device, encryption=keys.get(
        (device.uuid, device.encryption.key_id), device.encryption)) if device.encryption else device
        for device in devices]


def without_secrets(instance: Instance) -> Instance:
    """Return the instance without the secrets that only conductors can decrypt: passwords, volume keys and so on."""
    if instance.encrypted_pass is None and instance.encrypted_tpm_secret is None and not any(
            device.encryption for device in instance.block_devices):
        return instance
    return msgspec.structs.replace(instance, encrypted_pass=None, encrypted_tpm_secret=None, block_devices=[
        msgspec.structs.replace(device, encryption=msgspec.structs.replace(device.encryption, encrypted_passphrase=""))
        if device.encryption else device for device in instance.block_devices])


class Key(Object, kw_only=True):
    """A public key for the guest. It is a copy, because the key pair may be deleted later."""

    name: str
    type: str = "ssh"
    public_key: str
    fingerprint: str = ""


class Personality(Object, kw_only=True):
    """A file to inject; ``contents`` is base64 text."""

    path: str
    contents: str


class ServerProperties(Object, kw_only=True):
    """The properties that a server takes unchanged from its create request. ``image``: the image to boot or, for a boot
    volume, its source; None: taken from the boot volume. ``kernel_id``, ``ramdisk_id``: from ``image``.
    ``request_digest``: digest of the body of the request, if the request had an Idempotency-Key."""

    image: Image | None = None
    kernel_id: str = ""
    ramdisk_id: str = ""
    user_data: str | None = None
    metadata: dict[str, str] = {}
    tags: list[str] = []
    block_devices: list[BlockDevice] = []
    personality: list[Personality] = []
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    scheduler_hints: dict[str, Any] = {}
    trusted_certs: list[str] | None = None
    request_digest: str | None = None


# Maximum number of characters. Hosts report these texts, and the server's row stores them.
_Address = Annotated[str, msgspec.Meta(max_length=64)]


class DeviceAddress(Object, kw_only=True):
    """The bus address of a guest's device, as shown in its metadata. ``device``: MAC address of an interface (lower
    case), or name of a disk as in disk_names(). ``bus``: pci, usb, scsi, ide or none. ``address`` in the format of that
    bus: "0000:00:03.0" (pci), "0:0:1:0" (scsi and ide: controller, bus, target, unit), "0:1" (usb: bus, port)."""

    device: _Address
    bus: _Address = "none"
    address: _Address = "none"


DeviceAddresses = Annotated[list[DeviceAddress], msgspec.Meta(max_length=512)]  # addresses of all devices of a guest


class Instance(ServerProperties, kw_only=True):
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
    image_ref: str = ""
    key: Key | None = None
    system_metadata: dict[str, str] = {}
    security_groups: list[str] = []
    requested_networks: list[NetworkRequest] | None = None
    network_info: list[VIF] = []
    shares: list[ShareMapping] | None = None
    config_drive: bool = False
    disk_config: str = "MANUAL"
    launch_index: int = 0
    reservation_id: str = ""
    root_device_name: str = "/dev/vda"
    locked_by: str | None = None
    locked_reason: str | None = None
    # Set only in orders for hosts that need it. Conductors store it encrypted (nova.conductor.secret_cipher).
    admin_pass: str | None = None
    encrypted_pass: str | None = None
    # Passphrase of the state of the virtual TPM; decrypted only in orders of steps that start the guest.
    tpm_secret: str | None = None
    encrypted_tpm_secret: str | None = None
    server_group: str | None = None
    # Dedicated resources of the host; None: none.
    numa_topology: GuestTopology | None = None
    pci_devices: list[GuestDevice] | None = None
    # Reported by the host; None: not reported yet.
    device_addresses: DeviceAddresses | None = None
    fault: Fault | None = None
    # The action that holds the instance (its operation is in task_state), if any.
    action_uuid: str | None = None
    created_at: datetime.datetime
    updated_at: datetime.datetime | None = None
    launched_at: datetime.datetime | None = None
    terminated_at: datetime.datetime | None = None
    # Time of the soft delete. Such a server can be restored and does not count against quota.
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
        """Return an id of the host that differs per project, or "" without a host."""
        if not self.host:
            return ""
        return hashlib.sha224((self.project_id + self.host).encode()).hexdigest()

    def name_by(self, template: str) -> str:
        """Return the domain name on the hypervisor. ``template``: [DEFAULT]instance_name_template."""
        return template % {"uuid": self.uuid, "id": self.id} if "%(" in template else template % self.id

    @property
    def volume_backed(self) -> bool:
        return root_volume(self.block_devices) is not None

    @property
    def volumes(self) -> list[BlockDevice]:
        """Return the volumes of the server, without volumes that are to replace other volumes."""
        return [disk for disk in self.block_devices if disk.is_volume and disk.volume_id and not disk.replaces]

    @property
    def volume_devices(self) -> list[BlockDevice]:
        """Return the volume devices, including volumes to be created and replacements."""
        return [device for device in self.block_devices if device.is_volume]

    def volume(self, volume_id: str) -> BlockDevice | None:
        """Return the volume with this id, or None."""
        return next((disk for disk in self.volumes if disk.volume_id == volume_id), None)

    def volume_now(self, device: BlockDevice) -> BlockDevice | None:
        """Return the current state of the device, or None if it is detached."""
        return next((disk for disk in self.volumes if disk.uuid == device.uuid), None)

    def attached(self, volume_id: str) -> BlockDevice:
        """Return the volume with this id. Raises VolumeNotAttached."""
        return self._attached(self.volume(volume_id), volume_id)

    def attached_now(self, device: BlockDevice) -> BlockDevice:
        """Return the current state of the device. Raises VolumeNotAttached."""
        return self._attached(self.volume_now(device), device.volume_id)

    def _attached(self, device: BlockDevice | None, volume_id: str | None) -> BlockDevice:
        if device is None:
            raise exception.VolumeNotAttached(instance_uuid=self.uuid, volume_id=volume_id)
        return device

    def share(self, share_id: str) -> ShareMapping | None:
        """Return the server's mapping of the share, or None."""
        return next((mapping for mapping in self.shares or () if mapping.share_id == share_id), None)

    @property
    def usable_shares(self) -> list[ShareMapping]:
        """Return the shares that the guest mounts when it runs."""
        return [mapping for mapping in self.shares or () if mapping.status == INACTIVE]

    @property
    def runs(self) -> bool:
        """Return True if the guest has a process according to the last report."""
        return self.power_state in (states.RUNNING, states.POWER_PAUSED)

    def status_of(self, mapping: ShareMapping) -> str:
        """Return the status that the API shows: a share is active while the guest runs."""
        return ACTIVE if mapping.status == INACTIVE and self.runs else mapping.status
