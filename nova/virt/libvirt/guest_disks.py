"""The local disks of guests of libvirt: files in a directory per guest."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from nova import exception
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt import power
from nova.virt.libvirt.files import directories, disk_making, disk_server, disks
from nova.virt.libvirt.guests import Guests


class Disks(guest_driver.Disks):
    def __init__(self, guests: Guests) -> None:
        self._guests = guests

    def prepare(self, instance: Instance, files: BootFiles) -> None:
        self._guests.config(instance)
        with self._guests.locks.hold(instance.uuid):
            disk_making.make(instance, files, self._guests.name)

    def replace(self, instance: Instance, files: BootFiles, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        uuid, guests = instance.uuid, self._guests

        def remove_guest() -> None:
            with contextlib.suppress(exception.GuestNotFound):
                guests.on_domain(uuid, lambda domain: power.remove(domain, keep_nvram=False))

        if directories.mark(uuid) == token:
            return
        guests.config(instance)
        disk_server.stop(uuid)
        guests.shut_down_if_present(uuid, timeout)
        with guests.locks.hold(uuid):
            if directories.is_aside(uuid) and not guests.exists(uuid):  # Left by a move that could not restore it.
                directories.put_back(uuid, guests.name)
            disk_making.make_anew(instance, files, guests.name, token, keep_ephemerals, remove_guest)

    def exist(self, instance: Instance) -> bool:
        return disks.has_any(directories.directory(instance.uuid))

    def used_images(self) -> Sequence[str]:
        return sorted(disks.bases_in_use())
