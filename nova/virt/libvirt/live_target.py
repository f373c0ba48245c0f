"""Live migration on the destination host."""

import functools
import logging

import libvirt
import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskFile, DiskSource, MigrationSource, MigrationTarget
from nova.operations.framework import guest_driver
from nova.virt.images import qemuimg
from nova.virt.libvirt import power
from nova.virt.libvirt.files import copies, directories, peers
from nova.virt.libvirt.guests import LOCK_TIMEOUT, Role

LOG = logging.getLogger(__name__)


class LiveMigrationTarget(Role, guest_driver.LiveMigrationTarget):
    def prepare(self, instance: Instance, source: MigrationSource, block: bool | None = None) -> MigrationTarget:
        uuid, host = instance.uuid, self._guests.name
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT), directories.full_disk():
            self._check(source)
            if self._runs_here(uuid):
                raise exception.MigrationPreCheckError(reason=f"the guest is on {host} already")
            owner = directories.owner(directories.directory(uuid))
            shared = owner is not None and owner.token == source.token
            if source.disks and block is not None and block == shared:
                raise exception.MigrationPreCheckError(reason=(
                    f"{source.host} and {host} {'share' if shared else 'do not share'} the server's disks"))
            if not shared:
                self._make_room(instance, source)
            address = CONF.libvirt.live_migration_inbound_addr or CONF.my_ip
            return MigrationTarget(host=host, uri=peers.uri(address), address=address, shared=shared,
                                   copied=[] if shared else [disk.name for disk in source.disks], incremental=True,
                                   definition=self._guests.definition_of(instance), network_info=instance.network_info)

    def finish(self, instance: Instance) -> None:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid):
            if not self._guests.exists(uuid):
                raise exception.GuestNotFound(instance_uuid=uuid)
            directories.take(uuid, self._guests.name)
            copies.complete(uuid)
            self._guests.redefine(instance)
            # The migration paused the guest in order to complete; no user paused it.
            if instance.vm_state != states.PAUSED:
                self._guests.on_domain(uuid, power.unpause)

    def rollback(self, instance: Instance, target: MigrationTarget) -> None:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT):
            if self._runs_here(uuid):
                raise exception.MigrationError(reason=f"the guest already runs on {self._guests.name}")
            if self._guests.exists(uuid):
                self._guests.on_domain(uuid, lambda domain: power.remove(domain, keep_nvram=True))
            self._guests.forget_keys(uuid)
            if not target.shared and copies.is_incomplete(uuid):
                directories.remove(uuid, self._guests.name)

    def _runs_here(self, uuid: str) -> bool:
        def query(domain: libvirt.virDomain) -> bool:
            return bool(domain.isActive()) and not power.is_arriving(domain)

        try:
            return self._guests.on_domain(uuid, query)
        except exception.GuestNotFound:
            return False

    def _make_room(self, instance: Instance, source: MigrationSource) -> None:
        """Copy the served files, and create empty disks on top of their backing images."""
        served = msgspec.structs.replace(source.served or DiskSource(host=""), host=source.host)
        copies.check_allowed(instance, [*served.files, *source.disks], served.bases)
        place = copies.begin(instance.uuid, source.token, self._guests.name)
        for file in served.files:
            copies.receive(instance, place, file, served)
        for disk in source.disks:
            copies.check_name(disk)
            base = copies.base_of(instance, disk, served)
            directories.once(place, disk.name, functools.partial(_make_empty, disk, base))

    def _check(self, source: MigrationSource) -> None:
        """Check that the guest can run on this host. Raises MigrationPreCheckError."""
        guest = self._guests.settings.architecture(source.architecture)
        if guest is None:
            raise exception.MigrationPreCheckError(
                reason=f"{self._guests.name} has no QEMU for guests of the architecture {source.architecture}")
        if guest.machines and source.machine not in guest.machines:
            raise exception.MigrationPreCheckError(reason=f"{self._guests.name} has no machine type {source.machine}")
        version = self._guests.host.call(lambda connection: connection.getVersion())
        if version < source.hypervisor_version:
            raise exception.MigrationPreCheckError(
                reason=f"the hypervisor of {self._guests.name} is older than that of {source.host}")
        if not source.cpu:
            return

        def compare(connection: libvirt.virConnect) -> int:
            return int(connection.compareHypervisorCPU(None, guest.name, source.machine, guest.virt_type,
                                                       source.cpu, 0))

        try:
            fits = self._guests.host.call(compare)
        except (libvirt.libvirtError, exception.InvalidInput) as error:
            raise exception.MigrationPreCheckError(
                reason=f"{self._guests.name} cannot compare the guest's CPU: {error}") from error
        if fits <= libvirt.VIR_CPU_COMPARE_INCOMPATIBLE:
            raise exception.MigrationPreCheckError(
                reason=f"the CPU of {self._guests.name} lacks features that the guest has on {source.host}")


def _make_empty(disk: DiskFile, base: str, path: str) -> None:
    if base:
        qemuimg.create_overlay(path, base, disk.base_format, disk.size)
    else:
        qemuimg.create(path, disk.format, disk.size)
