"""Migrations of virtual guests: copies of disks for cold migration, and live migration.

Each host has its own state. Source and destination exchange data as real hosts do; only the arrival of a running guest
is signalled directly between the hypervisors (:class:`nova.virt.fake.host.ArrivalSignal`)."""

import secrets
import threading
import time
from collections.abc import Callable

from nova import exception
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskFile, DiskSource, MigrationProgress, MigrationSource, MigrationTarget
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.fake import disks as fake_disks
from nova.virt.fake.disks import ASIDE
from nova.virt.fake.host import FakeRole

_MIB, _GIB = 1 << 20, 1 << 30
# Seconds between two steps of a live migration, and number of progress reports.
_TICK = 0.02
_REPORTS = 10


class ColdMigration(FakeRole, guest_driver.ColdMigration):
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        self.host.behaviour.simulate("check_resize")
        disk = self.host.disks.get(instance.uuid)
        if disk is not None:
            _check_growth(disk.gb, flavor)

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        self.host.behaviour.simulate("open_disks")
        uuid = instance.uuid
        if self.host.guests.find(uuid) is not None:
            self.host.disks.remove(uuid + ASIDE)  # a disk renamed by an earlier move, not removed at its end
        self.host.guests.remove(uuid)
        if self.host.disks.get(uuid + ASIDE) is None:
            self.host.disks.rename(uuid, uuid + ASIDE)
        self.host.serving.add(uuid)
        disk = self.host.disks.get(uuid + ASIDE)
        return DiskSource(host=self.host.name, token=disk.token if disk is not None else secrets.token_hex(16),
                          address=CONF.my_ip, port=1, key=secrets.token_hex(16), files=_files(disk))

    def close_disks(self, instance: Instance) -> None:
        self.host.behaviour.simulate("close_disks")
        self.host.serving.discard(instance.uuid)

    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        self.host.behaviour.simulate("receive_disks")
        if source.files and self.host.disks.get(instance.uuid) is None:
            self.host.disks.put(instance.uuid, fake_disks.made(self.host.name, source.files[0].size // _GIB))

    def finish(self, instance: Instance) -> None:
        self.host.behaviour.simulate("finish_move")
        disk = self.host.disks.get(instance.uuid)
        if disk is not None:
            _check_growth(disk.gb, instance.flavor)
            self.host.disks.put(instance.uuid, disk._replace(gb=instance.flavor.root_gb or disk.gb))
        self.host.guests.define(instance, states.SHUTDOWN)

    def confirm(self, instance: Instance) -> None:
        self.host.behaviour.simulate("confirm_move")
        self.host.serving.discard(instance.uuid)
        self.host.disks.remove(instance.uuid + ASIDE)

    def revert(self, instance: Instance, former: str = "") -> None:
        self.host.behaviour.simulate("revert_move")
        self.host.serving.discard(instance.uuid)
        if self.host.guests.find(instance.uuid) is not None:
            return
        if self.host.disks.get(instance.uuid + ASIDE) is not None:
            self.host.disks.rename(instance.uuid + ASIDE, instance.uuid)
            self.host.guests.define(instance, states.SHUTDOWN)


class LiveMigrationSource(FakeRole, guest_driver.LiveMigrationSource):
    def check(self, instance: Instance) -> MigrationSource:
        guest = self.get("check_migration_source", instance)
        if guest.power_state not in (states.RUNNING, states.POWER_PAUSED):
            raise exception.MigrationPreCheckError(reason="the guest is not running")
        self.host.serving.add(instance.uuid)
        disk = self.host.disks.get(instance.uuid)
        return MigrationSource(
            host=self.host.name, token=disk.token if disk is not None else "", memory_mb=instance.flavor.memory_mb,
            power_state=guest.power_state, hypervisor_version=1000, disks=_files(disk))

    def migrate(self, instance: Instance, target: MigrationTarget, on_progress: Callable[[MigrationProgress], None],
                cancelled: Cancelled) -> None:
        uuid = instance.uuid
        self.host.serving.discard(uuid)
        if self.host.guests.get(uuid).went:
            return
        forced = self.host.migrations.setdefault(uuid, threading.Event())
        try:
            self._copy(instance, target, forced, on_progress, cancelled)
            # The configured failure happens at the end, which is the most critical moment.
            self.host.behaviour.fail("live_migrate")
            self.host.arrivals.signal(uuid, target.host)
            self.host.guests.change(uuid, power_state=states.SHUTDOWN, went=True)
        finally:
            self.host.migrations.pop(uuid, None)

    def _copy(self, instance: Instance, target: MigrationTarget, forced: threading.Event,
              on_progress: Callable[[MigrationProgress], None], cancelled: Cancelled) -> None:
        """Report progress during the configured latency of live_migrate."""
        seconds = self.host.behaviour.latency_of("live_migrate")
        memory, disk = instance.flavor.memory_mb * _MIB, 0 if target.shared else instance.flavor.root_gb * _GIB
        began = time.monotonic()
        reported = -1
        while True:
            if cancelled.is_set():
                raise exception.MigrationCancelled()
            done = min(1.0, (time.monotonic() - began) / seconds) if seconds and not forced.is_set() else 1.0
            if int(done * _REPORTS) > reported:
                reported = int(done * _REPORTS)
                on_progress(MigrationProgress(memory_total=memory, memory_processed=int(memory * done),
                                              memory_remaining=memory - int(memory * done), disk_total=disk,
                                              disk_processed=int(disk * done), disk_remaining=disk - int(disk * done)))
            if done == 1.0:
                return
            time.sleep(min(_TICK, seconds))

    def force_complete(self, uuid: str) -> None:
        forced = self.host.migrations.get(uuid)
        if forced is not None:
            forced.set()


class LiveMigrationTarget(FakeRole, guest_driver.LiveMigrationTarget):
    def prepare(self, instance: Instance, source: MigrationSource, block: bool | None = None) -> MigrationTarget:
        self.host.behaviour.simulate("prepare_migration")
        uuid = instance.uuid
        self.host.take_over(instance.uuid)
        guest = self.host.guests.find(uuid)
        if guest is not None and not guest.incoming and not guest.went:
            raise exception.MigrationPreCheckError(reason=f"the guest is on {self.host.name} already")
        disk = self.host.disks.get(uuid)
        shared = disk is not None and disk.token == source.token
        local = bool(source.disks)
        if local and block is not None and block == shared:
            raise exception.MigrationPreCheckError(
                reason=f"{source.host} and {self.host.name} {'share' if shared else 'do not share'} the server's disks")
        if local and not shared:
            self.host.disks.put(uuid, fake_disks.made(self.host.name, source.disks[0].size // _GIB))
        self.host.arrivals.forget(uuid, self.host.name)
        self.host.guests.define(instance, source.power_state, incoming=True, went=False)
        return MigrationTarget(host=self.host.name, uri=f"fake://{self.host.name}", address=CONF.my_ip, shared=shared,
                               copied=["disk"] if local and not shared else [], network_info=instance.network_info)

    def finish(self, instance: Instance) -> None:
        self.host.behaviour.simulate("finish_migration")
        self.host.take_over(instance.uuid)
        guest = self.host.guests.get(instance.uuid)
        self.host.guests.define(instance, guest.power_state, incoming=False)
        disk = self.host.disks.get(instance.uuid)
        if disk is not None:
            self.host.disks.put(instance.uuid, disk._replace(host=self.host.name))

    def rollback(self, instance: Instance, target: MigrationTarget) -> None:
        self.host.behaviour.simulate("rollback_migration")
        self.host.take_over(instance.uuid)
        guest = self.host.guests.find(instance.uuid)
        if guest is not None and not guest.incoming:
            raise exception.MigrationError(reason=f"no rollback: the guest already runs on {self.host.name}")
        self.host.guests.remove(instance.uuid)
        if guest is not None and not target.shared:
            self.host.disks.remove(instance.uuid)


def _files(disk: fake_disks.Disk | None) -> list[DiskFile]:
    """Return the disk files that another host copies. A disk of 0 GiB (it has the size of its image) is a file, too."""
    return [DiskFile(name="disk", size=disk.gb * _GIB)] if disk is not None else []


def _check_growth(have_gb: int, flavor: Flavor) -> None:
    if flavor.root_gb and flavor.root_gb < have_gb:
        raise exception.ResizeError(reason=f"a root disk of {have_gb} GiB cannot shrink to {flavor.root_gb} GiB")
