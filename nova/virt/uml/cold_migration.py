"""Moves of stopped guests. The source makes the root disk independent of its image, renames the directory and serves
its files. The destination copies each file from the source or, on a shared file system, from the renamed directory."""

import functools
import logging
import os

import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.requirements import local_disks
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskFile, DiskSource
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_files import directories, disk_server
from nova.virt.guest_files.local_guests import LocalColdMigration
from nova.virt.guest_locks import LOCK_TIMEOUT
from nova.virt.uml import cow, disks
from nova.virt.uml.guests import Guests, Role, check

LOG = logging.getLogger(__name__)

_GIB, _MIB = 1 << 30, 1 << 20
_SMALL = 64 * _MIB  # limit of a config drive


class ColdMigration(Role, LocalColdMigration):
    _guests: Guests

    # --- source ------------------------------------------------------------------------------------
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        if flavor.vcpus > 1:
            raise exception.ResizeError(reason=f"the flavor {flavor.name} has {flavor.vcpus} VCPUs, and User Mode "
                                               "Linux supports only one")
        disks.check_growth(directories.directory(instance.uuid), instance, flavor)

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        uuid = instance.uuid
        self._guests.shut_down_if_present(uuid, timeout)
        with self._held(uuid), directories.full_disk():
            self._remove_older_disks(uuid)
            if not directories.is_aside(uuid):
                place = directories.directory(uuid)
                if not os.path.isdir(place):
                    raise exception.GuestNotFound(instance_uuid=uuid)
                self._guests.end(uuid)
                disks.flatten_root(place)
                directories.set_aside(uuid)
            aside = directories.aside(uuid)
            moved = [DiskFile(name=name, format="raw", length=os.path.getsize(os.path.join(aside, name)),
                              size=os.path.getsize(os.path.join(aside, name)))
                     for name in (*disks.present(aside), disks.RAMDISK) if os.path.exists(os.path.join(aside, name))]
            source = disk_server.serve(uuid, [(file.name, os.path.join(aside, file.name)) for file in moved],
                                       self._guests.name)
            return msgspec.structs.replace(source, files=moved, token=directories.token(aside, self._guests.name))

    # --- destination -------------------------------------------------------------------------------
    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        uuid = instance.uuid
        check(instance)
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT), directories.full_disk():
            if self._guests.exists(uuid):
                return  # Copy nothing: the migration has already ended.
            place = directories.make(uuid, self._guests.name)
            there = directories.owner(directories.aside(uuid))
            local = directories.aside(uuid) if there is not None and there.token == source.token else ""
            limits = _limits(instance)
            for file in source.files:
                if file.name not in limits or file.format != "raw" or not 0 <= file.length <= limits[file.name]:
                    raise exception.MigrationError(reason=f"{file.name} of {file.length} bytes is not a file of the "
                                                          "server, or is larger than the server may have")
                if file.name == disks.SWAP and file.length != limits[disks.SWAP]:
                    continue  # finish() creates the swap disk
                fetch = (functools.partial(cow.copy, os.path.join(local, file.name)) if local else
                         functools.partial(disk_server.fetch, uuid, source, file.name, file.length))
                directories.once(place, file.name, fetch)

    def finish(self, instance: Instance) -> None:
        uuid = instance.uuid
        with self._held(uuid) as place, directories.full_disk():
            disks.check_growth(place, instance, instance.flavor)
            if not self._guests.is_running(uuid):  # a running guest was resized by an earlier attempt
                disks.grow(place, instance)
                disks.make(instance, BootFiles(), self._guests.name)
                self._guests.redefine(instance)


def _limits(instance: Instance) -> dict[str, int]:
    """Return the maximum number of bytes of each file that may move with the server. The root disk of a flavor without
    a size is limited by the size of its image."""
    image = instance.image
    root = instance.flavor.root_gb * _GIB or max((image.size or 0, image.virtual_size or 0) if image else (0,))
    limits = {disks.SWAP: local_disks.swap_mb(instance.block_devices, instance.flavor) * _MIB,
              disks.CONFIG_DRIVE: _SMALL, disks.RAMDISK: CONF.compute.kernel_size_limit_mb * _MIB}
    if not instance.volume_backed:
        limits[disks.RAW] = root
    for index, (size, _filesystem) in enumerate(disks.ephemerals(instance, instance.flavor)):
        limits[disks.ephemeral_name(index)] = size * _GIB
    return limits
