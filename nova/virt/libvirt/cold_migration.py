"""Moves of stopped guests: resize and cold migration, also within one host or on shared storage.

The source renames the guest's directory and serves its files; the destination copies each file."""

import functools
import logging
import os

import libvirt
import msgspec

from nova import exception
from nova.common import files
from nova.objects.accounts.flavor import Flavor
from nova.objects.requirements import local_disks
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskSource
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_files import directories
from nova.virt.guest_files.local_guests import LocalColdMigration
from nova.virt.guest_locks import LOCK_TIMEOUT
from nova.virt.libvirt import power
from nova.virt.libvirt.files import copies, disk_making, disks, tpm
from nova.virt.libvirt.guests import MOVED_DEFINITION, Guests, Role
from nova.virt.libvirt.xml.definition import Definition, received

LOG = logging.getLogger(__name__)


class ColdMigration(Role, LocalColdMigration):
    _guests: Guests

    # --- source ------------------------------------------------------------------------------------
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        disk_making.check_growth(disks.inspect_disks(instance), instance, flavor)

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        uuid = instance.uuid
        self._guests.shut_down_if_present(uuid, timeout)
        with self._guests.locks.hold(uuid):
            self._remove_older_disks(uuid)
            if not directories.is_aside(uuid):
                self._set_aside(uuid)
            self._guests.forget_keys(uuid)
            place = directories.aside(uuid)
            source = copies.serve(uuid, place, self._guests.name, *copies.describe(place))
            return msgspec.structs.replace(source, token=directories.token(place, self._guests.name),
                                           definition=files.text_of(os.path.join(place, MOVED_DEFINITION)) or "")

    def _set_aside(self, uuid: str) -> None:
        """Stop and undefine the guest and rename its directory. Continues after a crash at any point."""
        place = directories.directory(uuid)
        if self._guests.exists(uuid):
            self._guests.on_domain(uuid, power.stop)
            xml = self._guests.on_domain(uuid, lambda domain: domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
            directories.make(uuid, self._guests.name)
            directories.write(xml, os.path.join(place, MOVED_DEFINITION))
            firmware = Definition(xml).nvram
            if firmware and os.path.exists(firmware):
                copies.keep(firmware, place, disks.NVRAM)
            tpm.keep(uuid, place)
            self._guests.on_domain(uuid, lambda domain: power.undefine(domain, keep_nvram=True))
        elif not os.path.isdir(place):
            raise exception.GuestNotFound(instance_uuid=uuid)
        directories.set_aside(uuid)

    # --- destination -------------------------------------------------------------------------------
    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT), directories.full_disk():
            if self._guests.exists(uuid):
                return  # Copy nothing: the migration has already ended.
            # Skip a swap disk of another size: finish() creates a new one.
            swap = local_disks.swap_mb(instance.block_devices, instance.flavor) << 20
            lasting = [file for file in source.files if file.name != disks.SWAP or file.size == swap]
            copies.check_allowed(instance, lasting, source.bases)
            definition = received(source.definition) if source.definition else ""
            place = copies.begin(uuid, source.token, self._guests.name)
            there = directories.owner(directories.aside(uuid))
            seen = directories.aside(uuid) if there is not None and there.token == source.token else ""
            for file in lasting:
                copies.receive(instance, place, file, source, seen)
            if definition:
                directories.once(place, MOVED_DEFINITION, functools.partial(directories.write, definition))

    def finish(self, instance: Instance) -> None:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid), directories.full_disk():
            local = disks.inspect_disks(instance)
            disk_making.check_growth(local, instance, instance.flavor)
            # Skip a running guest: an earlier attempt has resized its disks.
            if not self._guests.is_active(uuid):
                disk_making.grow(local, instance)
                disk_making.make(instance, BootFiles(), self._guests.name)
                self._guests.redefine(instance)
            copies.complete(uuid)
