"""Volumes of a server in an external volume service, for the external steps of its operations.

The service is called immediately, outside any transaction. Its results are written with the step.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from nova import exception
from nova.conductor.resources import volume_keys
from nova.conductor.resources.server_volumes import StepTransaction
from nova.conf import CONF
from nova.db.hosts import services
from nova.db.servers import servers
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice, with_current_keys, with_ways
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import Volume, VolumeEncryption
from nova.objects.volumes.volume_snapshot import SnapshotRequest, VolumeSnapshot
from nova.operations.assisted_snapshots import ASSISTED
from nova.operations.framework.base import Wait

LOG = logging.getLogger(__name__)

_BEING_MADE = ("creating", "downloading")
_LONGEST_NAME = 255


class OutsideVolumes:
    """A :class:`nova.operations.framework.resource_contexts.OutsideVolumes`.

    ``devices`` () stands for all volumes of the server.
    """

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction
        self._ctx = transaction.ctx
        self._attachments = transaction.core.attachments

    # --- getting them ----------------------------------------------------------------------------------
    def make(self, checks: int, encryptions: dict[str, VolumeEncryption]) -> None:
        made, waits = [], False
        for device in self._of_server():
            if device.volume_id is None:
                volume = self._attachments.create(self._ctx, self._transaction.instance, device, None)
                encryption = self._encryption(volume, device.uuid or "", encryptions)
                if volume.status in _BEING_MADE:
                    waits = True
                    continue
                if volume.status not in (volume_states.AVAILABLE, volume_states.RESERVED):
                    raise exception.InvalidVolume(reason=f"volume {volume.uuid}, created for the server, is in status "
                                                         f"{volume.status}")
                device = msgspec.structs.replace(device, volume_id=volume.uuid, encryption=encryption)
            made.append(device)
        if waits and checks >= CONF.block_device_allocate_retries:
            raise exception.InvalidVolume(reason="the volume service did not make the server's volumes in time")
        if waits:
            raise Wait(seconds=CONF.block_device_allocate_retries_interval)
        self._record([self._reserved(device) for device in made])

    def _encryption(self, volume: Volume, device: str,
                    cached: dict[str, VolumeEncryption]) -> VolumeEncryption | None:
        """Return the encryption of the volume created for this device, cached in ``known``.

        The key is fetched while the caller's token is available. Raises InvalidVolume afterwards.
        """
        if volume.encrypted and device not in cached:
            if not self._ctx.auth_token:
                raise exception.InvalidVolume(reason=(
                    f"the key of volume {volume.uuid}, created for the server, could not be read while the user's "
                    "token was available; create the server again"))
            from nova.volume.cinder.api import retry_now  # imported late: only deployments with such volumes need it

            encryption = retry_now(lambda: volume_keys.fetched(self._transaction.core, self._ctx, volume))
            if encryption is not None:
                cached[device] = encryption
        return cached.get(device)

    def unmake(self) -> None:
        left = []
        for device in self._of_server():
            ours = device.source != "volume"
            self._attachments.release(self._ctx, self._transaction.instance, device, ours)
            left.append(msgspec.structs.replace(device, volume_id=None if ours else device.volume_id,
                                                encryption=None if ours else device.encryption, attachment_id=None,
                                                connection_info={}))
        self._record(left)

    def reserve(self, device: BlockDevice, owner: str) -> BlockDevice:
        # Reserved with Nova's own rights. The caller's rights were checked before the operation was queued.
        if owner and self._attachments.owner(self._ctx, device.volume_id or "") not in (owner, ""):
            raise exception.VolumeNotFound(volume_id=device.volume_id)
        return self._record([self._reserved(device)])[0]

    def _reserved(self, device: BlockDevice) -> BlockDevice:
        volume = self._attachments.reserve(self._ctx, self._transaction.instance, device, volume_states.RESERVED)
        return msgspec.structs.replace(device, attachment_id=volume.attachment_id)

    # --- the way to them -------------------------------------------------------------------------------
    def connect(self, host: str, *devices: BlockDevice) -> list[BlockDevice]:
        connector = self._connector(host)
        return self._record([
            self._attachments.connect(self._ctx, self._transaction.instance, device, host, connector)
            for device in devices or self._of_server()])

    def _connector(self, host: str) -> dict[str, Any]:
        connector = self._transaction.core.db.read(lambda connection: services.connector(connection, host))
        if connector is None:
            LOG.error("Host %s has not reported its volume connector", host)
            raise exception.InvalidVolume(reason="its host has not reported its volume connector")
        return connector

    def disconnect(self, host: str, *devices: BlockDevice) -> None:
        self._record([self._attachments.disconnect(self._ctx, self._transaction.instance, device, host)[0]
                      for device in devices or self._of_server()])

    # --- while the server moves ------------------------------------------------------------------------
    def connect_also(self, host: str) -> list[BlockDevice]:
        connector = self._connector(host)
        return [self._attachments.connect_also(self._ctx, self._transaction.instance, device, host, connector)
                for device in self._of_server() if device.attachment_id]

    def adopt(self, devices: Iterable[BlockDevice]) -> None:
        self._record(with_ways(self._of_server(), devices))

    def reconcile(self, host: str = "") -> None:
        connector = self._connector(host) if host else {}
        settled = []
        for device in self._of_server():
            if device.attachment_id:
                with contextlib.suppress(exception.VolumeNotFound):  # a deleted volume has no connections
                    settled.append(self._attachments.finish_move(
                        self._ctx, self._transaction.instance, device, host, connector))
        self._record(settled)

    def reimage(self, device: BlockDevice, image: Image) -> None:
        self._attachments.reimage(self._ctx, self._transaction.instance, device, image)

    def begin_swap(self, host: str, old: BlockDevice, new: BlockDevice) -> BlockDevice:
        volume = self._attachments.begin_swap(self._ctx, self._transaction.instance, old, new)
        new = msgspec.structs.replace(new, attachment_id=volume.attachment_id, size_gb=volume.size_gb,
                                      multiattach=volume.multiattach)
        return self.connect(host, new)[0]

    def end_swap(self, old: BlockDevice, new: BlockDevice, migrates: bool, done: bool) -> None:
        self._attachments.end_swap(self._ctx, self._transaction.instance, old, new, migrates, done)

    def complete(self, *devices: BlockDevice) -> None:
        for device in devices or self._of_server():
            self._attachments.complete(self._ctx, device)

    # --- saving them -----------------------------------------------------------------------------------
    def take_snapshots(self, image: Image) -> bool:
        name = f"snapshot for {image.name}"[:_LONGEST_NAME]
        taken = self._attachments.snapshots.take(self._ctx, image.id, [
            SnapshotRequest(volume_id=device.volume_id or "", force=True, name=name)
            for device in self._transaction.instance.volumes])
        return all(snapshot.status not in _BEING_MADE for snapshot in taken)

    def snapshots(self, image: Image, checks: int) -> dict[str, VolumeSnapshot]:
        existing = self._attachments.snapshots.of_image(self._ctx, image.id)
        if any(snapshot.status in _BEING_MADE for snapshot in existing):
            if checks >= CONF.block_device_allocate_retries:
                raise exception.InvalidVolume(reason="the volume service did not make the snapshots in time")
            raise Wait(seconds=CONF.block_device_allocate_retries_interval, ahead=ASSISTED)
        made = {snapshot.volume_id: snapshot for snapshot in existing if snapshot.status == volume_states.AVAILABLE}
        for device in self._transaction.instance.volumes:
            if device.volume_id not in made:
                raise exception.InvalidVolume(reason=f"the volume service created no usable snapshot of volume "
                                                     f"{device.volume_id}")
        return made

    def drop_snapshots(self, image: Image) -> None:
        self._attachments.snapshots.drop(self._ctx, image.id)

    def check_assisted(self, device: BlockDevice, snapshot_id: str, status: str) -> None:
        self._attachments.snapshots.check_assisted(self._ctx, device.volume_id or "", snapshot_id, status)

    def end_assisted(self, snapshot_id: str, status: str, done: bool) -> None:
        self._attachments.snapshots.end_assisted(self._ctx, snapshot_id, status, done)

    # --- making them larger ----------------------------------------------------------------------------
    def extended(self, device: BlockDevice) -> tuple[int, bool]:
        return self._attachments.extension(self._ctx, self._transaction.instance, device)

    def end_extension(self, device: BlockDevice, size_gb: int, done: bool) -> None:
        self._attachments.end_extension(
            self._ctx, self._transaction.instance.uuid, device.volume_id or "", size_gb, done)

    # --- giving them back ------------------------------------------------------------------------------
    def begin_detaching(self, device: BlockDevice) -> None:
        self._attachments.begin_detaching(self._ctx, device)

    def roll_detaching(self, device: BlockDevice) -> None:
        self._attachments.roll_detaching(self._ctx, device)

    def release(self, *devices: BlockDevice, keep: bool = False) -> None:
        for device in devices or self._of_server():
            self._attachments.release(self._ctx, self._transaction.instance, device,
                                      device.delete_on_termination and not keep)

    # --- inside ----------------------------------------------------------------------------------------
    def _of_server(self) -> list[BlockDevice]:
        """Return the volume devices of the server, including volumes to be created."""
        return [device for device in self._transaction.instance.block_devices if device.is_volume]

    def _record(self, devices: Iterable[BlockDevice]) -> list[BlockDevice]:
        """Update these devices in the server's row with the step.

        Devices that were removed meanwhile stay removed. Changes of delete_on_termination by users are preserved.
        """
        now = {device.uuid: device for device in devices}
        transaction = self._transaction
        if not now:
            return []

        def renewed(given: list[BlockDevice]) -> list[BlockDevice]:
            updated = [msgspec.structs.replace(now[device.uuid], delete_on_termination=device.delete_on_termination)
                    if device.uuid in now else device for device in given]
            return with_current_keys(updated, given)

        transaction.effects.append(lambda connection: servers.change(
            connection, transaction.instance, "block_devices", renewed))
        transaction.instance.block_devices = renewed(transaction.instance.block_devices)
        return list(now.values())
