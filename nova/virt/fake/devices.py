"""The devices of virtual guests: volumes, their swaps and files, and interfaces."""

import string

from nova import exception
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.fake.guests import Guest
from nova.virt.fake.host import FakeRole
from nova.virt.volume_files import NOT_ON_IT, files_of, is_merged, merged, was_merged


class Volumes(FakeRole, guest_driver.Volumes):
    def attach(self, instance: Instance, device: BlockDevice) -> None:
        self.host.behaviour.simulate("attach_volume")
        guest = self.host.guests.get(instance.uuid)
        if device.volume_id and device.volume_id not in {volume for _name, volume in guest.volumes}:
            item = (device.device_name or _free_name(guest), device.volume_id)
            self.host.guests.change(instance.uuid, volumes=(*guest.volumes, item))
            self.host.guests.set_files(instance.uuid, device.volume_id, files_of(device))

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        self.host.behaviour.simulate("detach_volume")
        guest = self.host.guests.find(instance.uuid)
        if guest is not None:
            self.host.guests.change(instance.uuid, volumes=tuple(
                item for item in guest.volumes if item[1] != device.volume_id))
            self.host.guests.set_files(instance.uuid, device.volume_id or "", ())

    def extend(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        self.host.behaviour.simulate("extend_volume")
        guest, volume = self.host.guests.find(instance.uuid), device.volume_id or ""
        if guest is None or not guest.on:
            return False
        if volume not in {attached for _name, attached in guest.volumes}:
            raise exception.VolumeExtendFailed(volume_id=volume, reason="the guest does not have the volume")
        if dict(guest.sizes).get(volume, 0) < size_gb:
            others = tuple(item for item in guest.sizes if item[0] != volume)
            self.host.guests.change(instance.uuid, sizes=(*others, (volume, size_gb)))
        return True

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        self.host.behaviour.simulate("is_extended")
        guest = self.host.guests.find(instance.uuid)
        return guest is not None and guest.on and dict(guest.sizes).get(device.volume_id or "", 0) >= size_gb


class VolumeSwaps(FakeRole, guest_driver.VolumeSwaps):
    def swap(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        self.host.behaviour.simulate("swap_volume")
        guest = self.host.guests.get(instance.uuid)
        if new.attachment_id in guest.swapped:
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if old.volume_id not in {volume for _name, volume in guest.volumes}:
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason="the guest does not have the volume")
        if cancelled.is_set():
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason="the swap was cancelled")
        self.host.guests.change(instance.uuid, swapped=(*guest.swapped, new.attachment_id or ""), volumes=tuple(
            (name, new.volume_id if volume == old.volume_id else volume) for name, volume in guest.volumes))

    def cancel(self, instance: Instance, new: BlockDevice) -> bool:
        self.host.behaviour.simulate("cancel_swap")
        guest = self.host.guests.find(instance.uuid)
        return guest is not None and new.attachment_id in guest.swapped


class VolumeFiles(FakeRole, guest_driver.VolumeFiles):
    def names(self, instance: Instance, device: BlockDevice) -> list[str]:
        self.host.behaviour.simulate("volume_files")
        guest = self.host.guests.find(instance.uuid)
        return list(guest.files_of(device)) if guest is not None else []

    def snapshot(self, instance: Instance, new: BlockDevice) -> None:
        self.host.behaviour.simulate("snapshot_volume")
        guest = self.host.guests.get(instance.uuid)
        wanted, there = files_of(new), guest.files_of(new)
        if wanted and there[:1] == wanted[:1]:
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if not wanted or wanted[1:] != there:
            raise exception.VolumeSnapshotFailed(volume_id=new.volume_id, reason=NOT_ON_IT)
        self.host.guests.set_files(instance.uuid, new.volume_id or "", wanted)

    def merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
              cancelled: Cancelled) -> None:
        self.host.behaviour.simulate("merge_volume")
        guest, volume = self.host.guests.get(instance.uuid), device.volume_id or ""
        there = guest.files_of(device)
        if is_merged(volume, there, top, base):
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if cancelled.is_set():
            raise exception.VolumeSnapshotFailed(volume_id=volume, reason="it was cancelled")
        self.host.guests.set_files(instance.uuid, volume, tuple(merged(there, top, base)))

    def cancel(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        self.host.behaviour.simulate("cancel_merge")
        guest = self.host.guests.find(instance.uuid)
        return guest is not None and was_merged(guest.files_of(device), top, base)


class Interfaces(FakeRole, guest_driver.Interfaces):
    def attach(self, instance: Instance, vif: VIF) -> None:
        self.host.behaviour.simulate("attach_interface")
        guest = self.host.guests.get(instance.uuid)
        if vif.mac not in guest.interfaces:
            self.host.guests.change(instance.uuid, interfaces=(*guest.interfaces, vif.mac))

    def detach(self, instance: Instance, vif: VIF) -> None:
        self.host.behaviour.simulate("detach_interface")
        guest = self.host.guests.find(instance.uuid)
        if guest is not None:
            self.host.guests.change(instance.uuid, interfaces=tuple(mac for mac in guest.interfaces if mac != vif.mac))


def _free_name(guest: Guest) -> str:
    """Return the first free disk name after that of the root disk."""
    taken = {name for name, _volume in guest.volumes}
    return next(name for letter in string.ascii_lowercase[1:] if (name := f"/dev/vd{letter}") not in taken)
