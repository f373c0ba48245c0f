"""Volumes of a server, for the steps of its operations. Changes are written in the transaction of the step.

For volumes of an external service, only the server's row is changed; outside_volumes calls the service.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.resources import volume_keys
from nova.conf import CONF
from nova.db.servers import servers
from nova.objects.base import new_uuid
from nova.objects.images.image import Image, least_disk
from nova.objects.requirements import device_names
from nova.objects.servers.instance import BlockDevice, Instance, root_volume, with_current_keys
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import Volume, VolumeContent, VolumeEncryption, VolumeRemoval

# Returns the changed device, or None to remove it from the server.
Change = Callable[[sa.Connection, BlockDevice], BlockDevice | None]
# A change that also needs all devices of the server.
KnowingChange = Callable[[sa.Connection, BlockDevice, list[BlockDevice]], BlockDevice | None]


class StepTransaction(Protocol):
    """The context of a step: its instance, and the effects of its transaction."""

    core: Core
    ctx: context.RequestContext
    instance: Instance
    effects: list[Callable[[sa.Connection], None]]
    # Sent to their hosts after the commit.
    removals: list[VolumeRemoval]

    def set(self, **changes: Any) -> None: ...


class ServerVolumes:
    """A :class:`nova.operations.framework.resource_contexts.ServerVolumes`.

    ``devices`` () stands for all volumes of the server.
    """

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction
        self._attachments = transaction.core.attachments
        self._outside = self._attachments.external

    # --- in the accepting transaction ------------------------------------------------------------------
    def add(self, device: BlockDevice, connection: sa.Connection) -> BlockDevice:
        """Raises VolumeNotFound, InvalidVolume, DevicePathInUse, TooManyDiskDevices."""
        instance = self._transaction.instance
        if device.volume_id in [other.volume_id for other in instance.volumes]:
            raise exception.InvalidVolume(
                reason=f"volume {device.volume_id} is already attached to instances: {instance.uuid}")
        device = msgspec.structs.replace(device, uuid=new_uuid())
        if device.volume_id in [other.serial for other in instance.volumes]:
            device.serial = device.uuid  # another disk of the guest already has the volume's id as its serial
        check_count(instance, 1)
        device_names.assign(instance, [device])
        if not self._outside:
            device.attachment_id = new_uuid()
            self._attachments.reserve(self._transaction.ctx, instance, device, volume_states.ATTACHING, connection)
            if instance.host:
                device = self._connected(device, instance.host, connection)
        self._transaction.set(block_devices=[*instance.block_devices, device])
        return device

    def begin_detaching(self, device: BlockDevice, connection: sa.Connection) -> None:
        """Mark the volume as detaching. Raises InvalidVolume if another request changes it."""
        if not self._outside:
            self._attachments.begin_detaching(self._transaction.ctx, device, connection)

    def begin_swap(self, old: BlockDevice, volume_id: str, encryption: VolumeEncryption | None,
                   connection: sa.Connection) -> BlockDevice:
        """Raises VolumeNotFound (the new one), InvalidVolume."""
        transaction = self._transaction
        new = BlockDevice(source="volume", destination="volume", volume_id=volume_id, device_name=old.device_name,
                          delete_on_termination=False, uuid=new_uuid(), replaces=old.uuid, encryption=encryption)
        if not self._outside:
            new.attachment_id = new_uuid()
            new.size_gb = self._attachments.begin_swap(
                transaction.ctx, transaction.instance, old, new, connection).size_gb
            new = self._connected(new, transaction.instance.host or "", connection)
        transaction.set(block_devices=[*transaction.instance.block_devices, new])
        return new

    def reimage(self, image: Image, connection: sa.Connection) -> VolumeContent | None:
        """Begin to reimage the root volume. Raises InvalidInput, InvalidVolume (another request changes it)."""
        transaction = self._transaction
        device = root_volume(transaction.instance.block_devices)
        assert device is not None
        _check_fits(image, device)
        if self._outside:
            return None
        before = self._attachments.reimage(transaction.ctx, transaction.instance, device, image, connection)
        now = self._connected(device, transaction.instance.host or "", connection)
        transaction.set(block_devices=[
            now if existing is device else existing for existing in transaction.instance.block_devices])
        return before

    # --- written with the step -------------------------------------------------------------------------
    def connect(self, host: str) -> None:
        if not self._outside:
            self._change((), lambda connection, device: self._connected(device, host, connection))

    def _connected(self, device: BlockDevice, host: str, connection: sa.Connection) -> BlockDevice:
        transaction = self._transaction
        return self._attachments.connect(transaction.ctx, transaction.instance, device, host, {}, connection)

    def disconnect(self, host: str) -> None:
        def change(connection: sa.Connection, device: BlockDevice) -> BlockDevice:
            device, removals = self._attachments.disconnect(
                self._transaction.ctx, self._transaction.instance, device, host, connection)
            self._transaction.removals += removals
            return device

        if not self._outside:
            self._change((), change)

    def complete(self, *devices: BlockDevice) -> None:
        if not self._outside:
            self._change(devices, lambda connection, device: self._attachments.complete(
                self._transaction.ctx, device, connection))

    def end_reimage(self, before: VolumeContent, done: bool) -> None:
        def change(connection: sa.Connection, device: BlockDevice) -> BlockDevice:
            device, removals = self._attachments.end_reimage(
                self._transaction.ctx, self._transaction.instance, device, before, done, connection)
            self._transaction.removals += removals
            return device

        root = root_volume(self._transaction.instance.block_devices)
        if root is not None:
            self._change((root,), change)

    def end_swap(self, old: BlockDevice, new: BlockDevice, migrates: bool, done: bool) -> None:
        def change(connection: sa.Connection, device: BlockDevice, stored: list[BlockDevice]) -> BlockDevice | None:
            if device.uuid == new.uuid:
                return None
            transaction, (now,) = self._transaction, with_current_keys([new], stored)
            if not self._outside:
                now, removals = self._attachments.end_swap(
                    transaction.ctx, transaction.instance, old, now, migrates, done, connection)
                transaction.removals += removals
            return device.swapped(now, migrates) if done else device

        self._change_knowing((old, new), change)

    def reach(self, device: BlockDevice) -> None:
        def change(_connection: sa.Connection, stored: BlockDevice) -> BlockDevice:
            if stored.attachment_id != device.attachment_id:
                return stored
            return msgspec.structs.replace(stored, connection_info=device.connection_info)

        self._change((device,), change)

    def resize(self, device: BlockDevice, size_gb: int) -> None:
        self._change((device,), lambda _connection, stored: msgspec.structs.replace(stored, size_gb=size_gb))

    def roll_detaching(self, device: BlockDevice) -> None:
        def change(connection: sa.Connection, device: BlockDevice) -> BlockDevice:
            self._attachments.roll_detaching(self._transaction.ctx, device, connection)
            return device

        if not self._outside:
            self._change((device,), change)

    def release(self, *devices: BlockDevice, keep: bool = False) -> None:
        def change(connection: sa.Connection, device: BlockDevice) -> None:
            if not self._outside:
                self._transaction.removals += self._attachments.release(
                    self._transaction.ctx, self._transaction.instance, device,
                    device.delete_on_termination and not keep,
                    connection)

        self._change(devices, change)

    def _change(self, devices: Collection[BlockDevice], change: Change) -> None:
        """``change`` these volumes of the server, as its row has them when the step is written."""
        self._change_knowing(devices, lambda connection, device, _stored: change(connection, device))

    def _change_knowing(self, devices: Collection[BlockDevice], change: KnowingChange) -> None:
        transaction = self._transaction
        if not any(device.is_volume for device in transaction.instance.block_devices):
            return
        only = {device.uuid for device in devices}

        def effect(connection: sa.Connection) -> None:
            def changed(stored: list[BlockDevice]) -> list[BlockDevice]:
                now = [change(connection, device, stored) if device.is_volume and (not only or device.uuid in only)
                       else device for device in stored]
                return [device for device in now if device is not None]

            servers.change(connection, transaction.instance, "block_devices", changed)

        transaction.effects.append(effect)


def are_outside(core: Core, instance: Instance) -> bool:
    """Return True if the server has or requests volumes of an external service."""
    return any(device.is_volume for device in instance.block_devices) and core.attachments.external


def check_volumes(core: Core, ctx: context.RequestContext, devices: Sequence[BlockDevice]) -> dict[str, Volume]:
    """Return the external volumes of a new server by volume id, and the volumes to be created by snapshot id.

    Called before the accepting transaction, with the caller's rights.

    Raises VolumeNotFound, SnapshotNotFound, InvalidVolume, Forbidden, VolumeServiceUnavailable, KeyManagerUnavailable.
    """
    if not core.attachments.external:
        return {}
    project_id = ctx.project_id or ""
    there = {device.volume_id: core.attachments.validate(ctx, project_id, device.volume_id)
             for device in devices if device.volume_id}
    made = {device.snapshot_id: core.attachments.volume_from_snapshot(ctx, project_id, device.snapshot_id)
            for device in devices if device.snapshot_id}
    for volume in there.values():
        volume.encryption = volume_keys.fetched(core, ctx, volume)
    for volume in made.values():
        if volume.encrypted:
            volume_keys.check(core, ctx, volume.origin or "")
    return there | made


def give(core: Core, ctx: context.RequestContext, connection: sa.Connection, instance: Instance,
         images: dict[str, Image], seen: dict[str, Volume]) -> None:
    """Reserve and create the volumes of a new server, in the accepting transaction.

    The devices of ``instance`` become its own; ``seen`` is what look() returned. Raises VolumeNotFound, InvalidVolume,
    InvalidInput, QuotaLimit, DevicePathInUse, TooManyDiskDevices.
    """
    instance.block_devices = [msgspec.structs.replace(device, uuid=new_uuid()) for device in instance.block_devices]
    wanted = [device for device in instance.block_devices if device.is_volume]
    check_count(instance, 0)
    device_names.assign(instance, wanted)
    for device in wanted:
        image = images.get(device.image_id or "")
        _check_fits(image, device)
        if core.attachments.external:
            volume = seen.get(device.volume_id or device.snapshot_id or "")
        else:
            volume = _given(core, ctx, connection, instance, device, image)
        if volume is None:
            continue
        if device.source in ("volume", "snapshot") and device.boot_index == 0:
            # An image in the request decides what boots; as upstream, the volume is not checked then.
            if not volume.bootable and instance.image is None:
                raise exception.InvalidVolume(
                    reason=f"{device.source} {volume.uuid or device.snapshot_id} is not bootable")
            instance.image = _image_of(instance.image, volume.image)
        if device.source == "snapshot":
            device.size_gb = device.size_gb or volume.size_gb
            if device.size_gb < volume.size_gb:
                raise exception.InvalidInput(reason=f"a volume from snapshot {device.snapshot_id} has at least "
                                                    f"{volume.size_gb} GiB.")
            continue
        device.volume_id, device.size_gb, device.multiattach = volume.uuid, volume.size_gb, volume.multiattach
        device.encryption = volume.encryption


def _image_of(described: Image | None, of_volume: Image | None) -> Image | None:
    """Return the image of a server that boots from a volume.

    The properties of ``described``, an image without data that refers to the volume, take precedence.
    """
    if described is None or of_volume is None:
        return described or of_volume
    return msgspec.structs.replace(of_volume, properties=described.properties, min_ram=described.min_ram)


def _given(core: Core, ctx: context.RequestContext, connection: sa.Connection, instance: Instance,
           device: BlockDevice, image: Image | None) -> Volume:
    device.attachment_id = new_uuid()
    if device.source == "volume":
        return core.attachments.reserve(ctx, instance, device, volume_states.RESERVED, connection)
    return core.attachments.create(ctx, instance, device, image, connection)


def _check_fits(image: Image | None, device: BlockDevice) -> None:
    if image is None:
        return
    size = max(image.virtual_size or 0, least_disk(image.disk_format, image.size or 0))
    needed = max(image.min_disk, -(-size // 2**30))
    if needed > (device.size_gb or 0):
        raise exception.InvalidInput(
            reason=f"a volume of {device.size_gb} GiB is too small for image {image.id}, which needs {needed} GiB.")


def host_of(core: Core, connection: sa.Connection, instance: Instance) -> str | None:
    """Return the host to which the volumes bind the server, or None for any host. Raises InvalidVolume."""
    if core.attachments.external:
        return None
    hosts = core.attachments.hosts(instance.volumes, connection)
    if len(hosts) > 1:
        raise exception.InvalidVolume(reason="these volumes cannot be reached from one and the same host")
    return hosts.pop() if hosts else None


def bound_elsewhere(core: Core, connection: sa.Connection, instance: Instance, host: str) -> list[str]:
    """Return the ids of the server's volumes that cannot be reached from this host."""
    if core.attachments.external:
        return []
    return [device.volume_id or "" for device in instance.volumes
            if core.attachments.hosts([device], connection) - {host}]


def check_count(instance: Instance, more: int) -> None:
    """Raise TooManyDiskDevices if the server cannot have ``more`` additional disks."""
    maximum = CONF.compute.max_disk_devices_to_attach
    # The local root disk is the one of the image, whether or not it is named.
    disks = int(not instance.volume_backed) + sum(
        device.is_volume or device.source != "image" for device in instance.block_devices)
    if 0 <= maximum < disks + more:
        raise exception.TooManyDiskDevices(maximum=maximum)
