"""Volumes of a server, for the steps of its operations. Changes are written in the transaction of the step. For volumes
of an external service, only the server's row is changed here;
:class:`nova.operations.framework.resource_contexts.OutsideVolumes` calls the service."""

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core, StepTransaction
from nova.conductor.resources import volume_keys
from nova.conf import CONF
from nova.db.servers import servers
from nova.db.volumes import volumes
from nova.objects.base import new_uuid
from nova.objects.images.image import Image, least_disk
from nova.objects.requirements import device_names
from nova.objects.servers.instance import BlockDevice, Instance, root_volume, with_current_keys, with_ways
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import Volume, VolumeContent, VolumeRemoval


class ServerVolumes:
    """A :class:`nova.operations.framework.resource_contexts.ServerVolumes`. ``connection``: of the transaction that
    accepts an operation."""

    def __init__(self, transaction: StepTransaction, connection: sa.Connection | None = None) -> None:
        self._transaction, self._connection = transaction, connection
        self._outside = transaction.core.attachments.external

    @property
    def are_outside(self) -> bool:
        return are_outside(self._transaction.core, self._transaction.instance)

    # --- in the accepting transaction ------------------------------------------------------------------
    @property
    def _accepting(self) -> sa.Connection:
        assert self._connection is not None, "only in the accepting transaction"
        return self._connection

    def add(self, device: BlockDevice) -> BlockDevice:
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
            volumes.reserve(self._accepting, device.volume_id or "", instance.project_id, instance.uuid,
                            device.attachment_id, device.device_name)
            if instance.host:
                device = _bound(self._accepting, device, instance.host)
        self._transaction.set(block_devices=[*instance.block_devices, device])
        return device

    def bound_host(self) -> str | None:
        return host_of(self._transaction.core, self._accepting, self._transaction.instance)

    def bound_elsewhere(self, host: str) -> list[str]:
        if self._outside:
            return []
        return [device.volume_id or "" for device in self._transaction.instance.volumes
                if _hosts(self._accepting, [device]) - {host}]

    def begin_detaching(self, device: BlockDevice) -> None:
        if not self._outside:
            volumes.begin_detaching(self._accepting, device.volume_id or "", device.attachment_id or "")

    def begin_swap(self, host: str, old: BlockDevice, new: BlockDevice) -> BlockDevice:
        transaction, instance = self._transaction, self._transaction.instance
        if not self._outside:
            attachment = new_uuid()
            reserved = volumes.begin_swap(self._accepting, old.volume_id or "", old.attachment_id or "", Volume(
                uuid=new.volume_id or "", project_id=instance.project_id, instance_uuid=instance.uuid, size_gb=0,
                attachment_id=attachment, device_name=new.device_name))
            new = _bound(self._accepting, msgspec.structs.replace(
                new, attachment_id=attachment, size_gb=reserved.size_gb), host)
        transaction.set(block_devices=[*instance.block_devices, new])
        return new

    def reimage(self, device: BlockDevice, image: Image) -> VolumeContent | None:
        _check_fits(image, device)
        if self._outside:
            return None
        transaction = self._transaction
        before = volumes.reimage(self._accepting, device.volume_id or "", device.attachment_id or "", image)
        now = _bound(self._accepting, device, transaction.instance.host or "")
        transaction.set(block_devices=[
            now if existing is device else existing for existing in transaction.instance.block_devices])
        return before

    # --- changes in the transaction of the step ----------------------------------------------------------
    def bind(self, host: str) -> None:
        if not self._outside:
            self._change((), lambda connection, device: _bound(connection, device, host))

    def unbind(self) -> None:
        def change(connection: sa.Connection, device: BlockDevice) -> BlockDevice:
            volume = volumes.lock(connection, device.volume_id or "")
            if volume.attachment_id == device.attachment_id:
                self._remove(volumes.unbind(connection, volume))
            return msgspec.structs.replace(device, connection_info={})

        if not self._outside:
            self._change((), change)

    def complete(self, *devices: BlockDevice) -> None:
        if not self._outside:
            self._change(devices, _completed)

    def end_reimage(self, before: VolumeContent, done: bool) -> None:
        def change(connection: sa.Connection, device: BlockDevice) -> BlockDevice:
            self._remove(volumes.end_reimage(
                connection, device.volume_id or "", device.attachment_id or "", before, done))
            return _refreshed(connection, device)

        root = root_volume(self._transaction.instance.block_devices)
        if root is not None and not self._outside:
            self._change((root,), change)

    def end_swap(self, old: BlockDevice, new: BlockDevice, migrates: bool, done: bool) -> None:
        def change(connection: sa.Connection, stored: list[BlockDevice]) -> list[BlockDevice]:
            return [end(connection, device, stored) if device.uuid == old.uuid else device
                    for device in stored if device.uuid != new.uuid]

        def end(connection: sa.Connection, device: BlockDevice, stored: list[BlockDevice]) -> BlockDevice:
            now, = with_current_keys([new], stored)
            if not self._outside and done:
                volumes.inherit(connection, now.volume_id or "", old.volume_id or "")
                now = _completed(connection, now)
                self._release(connection, old, False)
            elif not self._outside:
                self._release(connection, now, False)
                volumes.roll_detaching(connection, old.volume_id or "", old.attachment_id or "")
            return device.swapped(now, migrates) if done else device

        self._change_all(change)

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
            volumes.roll_detaching(connection, device.volume_id or "", device.attachment_id or "")
            return device

        if not self._outside:
            self._change((device,), change)

    def release(self, *devices: BlockDevice, keep: bool = False) -> None:
        def change(connection: sa.Connection, device: BlockDevice) -> None:
            if not self._outside:
                self._release(connection, device, device.delete_on_termination and not keep)

        self._change(devices, change)

    def adopt(self, devices: Iterable[BlockDevice]) -> None:
        self.record(with_ways(self._transaction.instance.volume_devices, devices))

    def record(self, devices: Iterable[BlockDevice]) -> None:
        now = {device.uuid: device for device in devices}
        instance = self._transaction.instance

        def renewed(given: list[BlockDevice]) -> list[BlockDevice]:
            updated = [msgspec.structs.replace(now[device.uuid], delete_on_termination=device.delete_on_termination)
                       if device.uuid in now else device for device in given]
            return with_current_keys(updated, given)

        if now:
            self._change_all(lambda _connection, given: renewed(given))
            instance.block_devices = renewed(instance.block_devices)

    def _release(self, connection: sa.Connection, device: BlockDevice, delete: bool) -> None:
        self._remove(volumes.release(connection, device.volume_id or "", device.attachment_id or "", delete))

    def _remove(self, removal: VolumeRemoval | None) -> None:
        """Send the removal, if any, to its host after the commit."""
        if removal is not None:
            self._transaction.removals.append(removal)

    def _change(self, devices: Collection[BlockDevice],
                change: Callable[[sa.Connection, BlockDevice], BlockDevice | None]) -> None:
        """Apply ``change`` to these volumes of the server ((): to all); if it returns None, the volume is removed."""
        only = {device.uuid for device in devices}

        def changed(connection: sa.Connection, stored: list[BlockDevice]) -> list[BlockDevice]:
            now = [change(connection, device) if device.is_volume and (not only or device.uuid in only) else device
                   for device in stored]
            return [device for device in now if device is not None]

        self._change_all(changed)

    def _change_all(self, change: Callable[[sa.Connection, list[BlockDevice]], list[BlockDevice]]) -> None:
        """Apply ``change`` to the devices in the server's row, in the transaction of the step."""
        transaction = self._transaction
        if transaction.instance.volume_devices:
            transaction.effects.append(lambda connection: servers.change(
                connection, transaction.instance, "block_devices", lambda stored: change(connection, stored)))


def _bound(connection: sa.Connection, device: BlockDevice, host: str) -> BlockDevice:
    """Bind the embedded volume of the device to the host, unless it is bound to a host; return the device with the
    volume's connection_info."""
    volume = volumes.bind(connection, volumes.lock(connection, device.volume_id or ""), host)
    return msgspec.structs.replace(device, connection_info=volume.connection_info())


def _completed(connection: sa.Connection, device: BlockDevice) -> BlockDevice:
    volumes.complete(connection, device.volume_id or "", device.attachment_id or "")
    return _refreshed(connection, device)


def _refreshed(connection: sa.Connection, device: BlockDevice) -> BlockDevice:
    return msgspec.structs.replace(
        device, connection_info=volumes.get(connection, device.volume_id or "").connection_info())


def _hosts(connection: sa.Connection, devices: Iterable[BlockDevice]) -> set[str]:
    """Return the hosts that have the data of these embedded volumes; empty if every host can access the volumes."""
    existing = (volumes.get(connection, device.volume_id) for device in devices if device.volume_id)
    return {volume.host for volume in existing if volume.host}


def are_outside(core: Core, instance: Instance) -> bool:
    """Return True if the server has or requests volumes of an external service."""
    return bool(instance.volume_devices) and core.attachments.external


def check_volumes(core: Core, ctx: context.RequestContext, devices: Sequence[BlockDevice]) -> dict[str, Volume]:
    """Return the external volumes of a new server by volume id, and the volumes to be created by snapshot id. Called
    before the accepting transaction, with the caller's rights. Raises VolumeNotFound, SnapshotNotFound, InvalidVolume,
    Forbidden, VolumeServiceUnavailable, KeyManagerUnavailable."""
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


def give(core: Core, connection: sa.Connection, instance: Instance, images: dict[str, Image],
         seen: dict[str, Volume]) -> None:
    """Reserve and create the volumes of a new server, in the accepting transaction. ``instance`` gets copies of its
    devices. ``seen``: the result of check_volumes(). Raises VolumeNotFound, InvalidVolume, InvalidInput, QuotaLimit,
    DevicePathInUse, TooManyDiskDevices."""
    instance.block_devices = [msgspec.structs.replace(device, uuid=new_uuid()) for device in instance.block_devices]
    wanted = instance.volume_devices
    check_count(instance, 0)
    device_names.assign(instance, wanted)
    for device in wanted:
        image = images.get(device.image_id or "")
        _check_fits(image, device)
        if core.attachments.external:
            volume = seen.get(device.volume_id or device.snapshot_id or "")
        else:
            volume = _given(connection, instance, device, image)
        if volume is None:
            continue
        if device.source in ("volume", "snapshot") and device.boot_index == 0:
            # The volume need not be bootable if the request names an image, as in upstream.
            if not volume.bootable and instance.image is None:
                raise exception.InvalidVolume(
                    reason=f"{device.source} {volume.uuid or device.snapshot_id} is not bootable")
            instance.image = _image_of(instance.image, volume.image)
        if device.source == "snapshot":
            device.size_gb = device.size_gb or volume.size_gb
            if device.size_gb < volume.size_gb:
                raise exception.InvalidInput(reason=f"a volume from snapshot {device.snapshot_id} needs at least "
                                                    f"{volume.size_gb} GiB.")
            continue
        device.volume_id, device.size_gb, device.multiattach = volume.uuid, volume.size_gb, volume.multiattach
        device.encryption = volume.encryption


def _image_of(described: Image | None, of_volume: Image | None) -> Image | None:
    """Return the image of a server that boots from a volume. The properties of ``described``, an image without data
    that refers to the volume, take precedence."""
    if described is None or of_volume is None:
        return described or of_volume
    return msgspec.structs.replace(of_volume, properties=described.properties, min_ram=described.min_ram)


def _given(connection: sa.Connection, instance: Instance, device: BlockDevice, image: Image | None) -> Volume:
    device.attachment_id = new_uuid()
    if device.source == "volume":
        return volumes.reserve(connection, device.volume_id or "", instance.project_id, instance.uuid,
                               device.attachment_id, device.device_name, volume_states.RESERVED)
    return volumes.create(connection, Volume(
        uuid=new_uuid(), project_id=instance.project_id, user_id=instance.user_id,
        name="" if image else f"{instance.uuid}-blank-vol", size_gb=device.size_gb or 0, image=image,
        bootable=image is not None, status=volume_states.RESERVED, instance_uuid=instance.uuid,
        attachment_id=device.attachment_id, device_name=device.device_name))


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
    hosts = _hosts(connection, instance.volumes)
    if len(hosts) > 1:
        raise exception.InvalidVolume(reason="these volumes cannot be reached from one and the same host")
    return hosts.pop() if hosts else None


def check_count(instance: Instance, more: int) -> None:
    """Raise TooManyDiskDevices if the server cannot have ``more`` additional disks."""
    maximum = CONF.compute.max_disk_devices_to_attach
    # A local root disk counts once, whether or not the request lists the device of its image.
    disks = int(not instance.volume_backed) + sum(
        device.is_volume or device.source != "image" for device in instance.block_devices)
    if 0 <= maximum < disks + more:
        raise exception.TooManyDiskDevices(maximum=maximum)
