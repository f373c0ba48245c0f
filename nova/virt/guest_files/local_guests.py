"""Methods of drivers whose guests have a directory on the host (:mod:`nova.virt.guest_files.directories`). A directory
is removed with its guest, or renamed while the guest moves to another host."""

import abc
import logging
import os

from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_files import directories, disk_server
from nova.virt.guest_locks import GuestLocks

LOG = logging.getLogger(__name__)


class LocalGuests(guest_driver.Guests):
    """The guests of a host, each with a directory and a lock. ``name``: the host, which owns the directories."""

    name: str
    locks: GuestLocks

    @abc.abstractmethod
    def exists(self, uuid: str) -> bool:
        """Return True if the guest is defined on this host."""

    @abc.abstractmethod
    def redefine(self, instance: Instance) -> None:
        """Define the guest; the definition applies when the guest starts next. This host becomes the owner of the
        guest's directory. The caller holds the guest's lock."""

    @abc.abstractmethod
    def start(self, instance: Instance, fresh: bool = False, must_exist: bool = False, paused: bool = False) -> None:
        """Start the guest with its current definition. ``fresh``: power-cycle a guest in any state. ``must_exist``:
        raise GuestNotFound instead of defining the guest. ``paused``: start a stopped guest paused."""

    @abc.abstractmethod
    def _remove(self, uuid: str, keep_disks: bool) -> None:
        """Stop and remove the guest. Removes also its files, unless they are retained or belong to another host."""

    def spawn(self, instance: Instance, files: BootFiles, paused: bool = False) -> None:
        self.start(instance, paused=paused)

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        disk_server.stop(instance.uuid)
        self._remove(instance.uuid, keep_disks)

    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        self._remove(uuid, keep_disks)
        disk_server.stop(uuid)
        if not keep_disks:
            directories.remove_aside(uuid)


class LocalColdMigration(guest_driver.ColdMigration):
    """The end of a cold migration on its source host, where open_disks() has renamed the directory of the guest."""

    _guests: LocalGuests

    def close_disks(self, instance: Instance) -> None:
        disk_server.stop(instance.uuid)

    def confirm(self, instance: Instance) -> None:
        disk_server.stop(instance.uuid)
        with self._guests.locks.hold(instance.uuid):
            directories.remove_aside(instance.uuid)

    def revert(self, instance: Instance, former: str = "") -> None:
        uuid = instance.uuid
        disk_server.stop(uuid)
        with self._guests.locks.hold(uuid):
            exists = self._guests.exists(uuid)
            if directories.is_aside(uuid):
                if exists:
                    # The renamed files are from an earlier move, which ended without a report to this host.
                    LOG.warning("[instance: %s] The guest exists on this host: not restoring the files that an earlier "
                                "move had renamed", uuid)
                    return
                directories.put_back(uuid, self._guests.name, former)
            if not exists and os.path.isdir(directories.directory(uuid)):
                self._guests.redefine(instance)

    def _remove_older_disks(self, uuid: str) -> None:
        """Remove the renamed disks of an earlier move if the guest exists on this host, since it has newer disks. A
        later move must not use the renamed disks, which remain if this host did not receive the earlier move's end."""
        if self._guests.exists(uuid):
            directories.remove_aside(uuid)
