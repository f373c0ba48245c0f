"""Images of root disks. vCenter exports a linked clone of a snapshot, so a running guest continues."""

import contextlib
import functools
import logging
import os
import shutil
from typing import Any

from pyVmomi import vim

from nova import exception
from nova.common import files as small_files
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.images import qemuimg
from nova.virt.vmware import specs
from nova.virt.vmware.cluster import COPY, SERVER, Machine
from nova.virt.vmware.guests import Role, local_directory
from nova.virt.vmware.machines import SNAPSHOT, derived

LOG = logging.getLogger(__name__)

_PREFIX = "snapshot-"


class Snapshots(Role, guest_driver.Snapshots):
    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        uuid = instance.uuid
        path = os.path.join(local_directory(uuid), f"{_PREFIX}{image_id}.vmdk")
        with self._held(uuid) as machine:
            if not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                root = self._machines.facts(machine.ref).slots.device("root")
                if root is None:
                    raise exception.InvalidDiskInfo(reason="the server has no root disk on its host")
                self._clean(machine)
                part = f"{path}.part"
                try:
                    self._export(machine, uuid, part, qemuimg.most_bytes(root.capacityInKB << 10),
                                 functools.partial(_check, instance, cancelled))
                    os.rename(part, path)
                finally:
                    small_files.remove(part)
                    self._clean(machine)
        return DiskImage(path=path, format="vmdk")

    def _export(self, machine: Machine, uuid: str, path: str, most: int, check: Any) -> None:
        vcenter = self._guests.vcenter
        snapshot = vcenter.wait(machine.ref.CreateSnapshot_Task(SNAPSHOT, "", False, False))
        slots = self._machines.facts(machine.ref).slots
        root = slots.slots["root"]
        removed = [vim.vm.device.VirtualDeviceSpec(operation="remove", device=device)
                   for slot, device in slots.devices.items() if slot != root]
        slots.slots = {"root": root}
        config = vim.vm.ConfigSpec(instanceUuid=derived(uuid, COPY), managedBy=specs.owner(COPY), deviceChange=removed,
                                   extraConfig=[specs.option(SERVER, uuid), slots.stored()])
        spec = vim.vm.CloneSpec(
            location=vim.vm.RelocateSpec(pool=self._guests.cluster.pool, diskMoveType="createNewChildDiskBacking"),
            powerOn=False, template=False, snapshot=snapshot, config=config)
        check()
        clone = vcenter.wait(machine.ref.CloneVM_Task(self._guests.cluster.folder, derived(uuid, COPY), spec))
        check()
        vcenter.export(clone, path, most, check)

    def _clean(self, machine: Machine) -> None:
        """Remove the clone and the snapshot of an export, if they exist."""
        self._machines.destroy_derived(machine.uuid, COPY)
        self._machines.remove_snapshots(machine.ref, SNAPSHOT)

    def discard(self, instance: Instance) -> None:
        with contextlib.suppress(exception.GuestNotFound), self._held(instance.uuid) as machine:
            self._clean(machine)
        place = local_directory(instance.uuid)
        if os.path.isdir(place):
            small_files.remove(*(os.path.join(place, name) for name in os.listdir(place) if name.startswith(_PREFIX)))
            if not os.listdir(place):
                shutil.rmtree(place, ignore_errors=True)


def _check(instance: Instance, cancelled: Cancelled) -> None:
    if cancelled.is_set():
        raise exception.SnapshotFailed(instance_id=instance.uuid, reason="it was cancelled")
