"""Migrations of virtual guests: copies of disks for cold migration, and live migration.

Each host has its own state. Source and destination exchange data as real hosts do; only the arrival of a running guest
is signalled directly between the hypervisors (:class:`ArrivalSignal`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Callable
from typing import ClassVar

from nova import exception
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskFile, DiskSource, MigrationProgress, MigrationSource, MigrationTarget
from nova.operations.framework import guest_driver
from nova.virt import driver as driver_interface
from nova.virt.fake import disks as fake_disks
from nova.virt.fake.disks import ASIDE
from nova.virt.fake.guests import GuestStore

_MIB, _GIB = 1 << 20, 1 << 30
# Seconds between two steps of a live migration, and number of progress reports.
_TICK = 0.02
_REPORTS = 10


@dataclasses.dataclass
class MigrationJob:
    """A live migration in progress."""

    aborted: bool = False
    forced: bool = False


class ArrivalSignal:
    """Signals that guests arrived at a host: among all hosts with the same ``directory``, or (None) in this process."""

    _of_process: ClassVar[set[tuple[str, str]]] = set()

    def __init__(self, directory: str | None) -> None:
        self._directory = os.path.join(directory, "arrived") if directory else None

    def signal(self, uuid: str, host: str) -> None:
        if self._directory is None:
            self._of_process.add((uuid, host))
            return
        os.makedirs(self._directory, exist_ok=True)
        with open(self._path(uuid, host), "w"):
            pass

    def has_arrived(self, uuid: str, host: str) -> bool:
        return (uuid, host) in self._of_process if self._directory is None else os.path.exists(self._path(uuid, host))

    def forget(self, uuid: str, host: str) -> None:
        self._of_process.discard((uuid, host))
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(uuid, host))

    def _path(self, uuid: str, host: str) -> str:
        return os.path.join(self._directory or "", f"{uuid}.{host}")


class FakeMigrations(driver_interface.Driver):
    """The methods for cold and live migration."""

    _guests: GuestStore
    _disks: fake_disks.DiskStore
    _jobs: dict[str, MigrationJob]
    _arrivals: ArrivalSignal
    # Servers whose disks this host serves to another one.
    serving: set[str]

    def take_over(self, uuid: str) -> None:
        """Complete the arrival of a migrated guest."""
        guest = self._guests.find(uuid)
        if guest is not None and guest.incoming and self._arrivals.has_arrived(uuid, self.host):
            self._guests.change(uuid, incoming=False)
            self._arrivals.forget(uuid, self.host)

    def _behave(self, verb: str) -> None:
        """Simulate the configured latency and failure of a method."""
        raise NotImplementedError

    def _latency(self, verb: str) -> float:
        raise NotImplementedError

    # --- cold migration ---------------------------------------------------------------------------------
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        self._behave("check_resize")
        disk = self._disks.get(instance.uuid)
        if disk is not None:
            _check_growth(disk.gb, flavor)

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        self._behave("open_disks")
        uuid = instance.uuid
        self._guests.remove(uuid)
        if self._disks.get(uuid + ASIDE) is None:
            self._disks.rename(uuid, uuid + ASIDE)
        self.serving.add(uuid)
        disk = self._disks.get(uuid + ASIDE)
        return DiskSource(
            host=self.host, token=disk.token if disk is not None else secrets.token_hex(16), address=CONF.my_ip, port=1,
            key=secrets.token_hex(16), files=_files(disk))

    def close_disks(self, instance: Instance) -> None:
        self._behave("close_disks")
        self.serving.discard(instance.uuid)

    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        self._behave("receive_disks")
        if source.files and self._disks.get(instance.uuid) is None:
            self._disks.put(instance.uuid, fake_disks.made(self.host, source.files[0].size // _GIB))

    def finish_move(self, instance: Instance) -> None:
        self._behave("finish_move")
        disk = self._disks.get(instance.uuid)
        if disk is not None:
            _check_growth(disk.gb, instance.flavor)
            self._disks.put(instance.uuid, disk._replace(gb=instance.flavor.root_gb or disk.gb))
        self._guests.define(instance, states.SHUTDOWN)

    def confirm_move(self, instance: Instance) -> None:
        self._behave("confirm_move")
        self.serving.discard(instance.uuid)
        self._disks.remove(instance.uuid + ASIDE)

    def revert_move(self, instance: Instance) -> None:
        self._behave("revert_move")
        self.serving.discard(instance.uuid)
        if self._guests.find(instance.uuid) is not None:
            return
        if self._disks.get(instance.uuid + ASIDE) is not None:
            self._disks.rename(instance.uuid + ASIDE, instance.uuid)
            self._guests.define(instance, states.SHUTDOWN)

    # --- live migration: the source -----------------------------------------------------------------
    def check_migration_source(self, instance: Instance) -> MigrationSource:
        self._behave("check_migration_source")
        guest = self._guests.get(instance.uuid)
        if guest.power_state not in (states.RUNNING, states.POWER_PAUSED):
            raise exception.MigrationPreCheckError(reason="the guest does not run")
        self.serving.add(instance.uuid)
        disk = self._disks.get(instance.uuid)
        return MigrationSource(
            host=self.host, token=disk.token if disk is not None else "", memory_mb=instance.flavor.memory_mb,
            power_state=guest.power_state, hypervisor_version=1000,
            disks=_files(disk))

    def live_migrate(self, instance: Instance, target: MigrationTarget,
                     on_progress: Callable[[MigrationProgress], None], cancelled: guest_driver.Cancelled) -> None:
        uuid = instance.uuid
        self.serving.discard(uuid)
        if self._guests.get(uuid).went:
            return
        job = self._jobs.setdefault(uuid, MigrationJob())
        try:
            self._copy(instance, target, job, on_progress, cancelled)
            # The configured failure happens at the end, which is the most critical moment.
            self._fail("live_migrate")
            self._arrivals.signal(uuid, target.host)
            self._guests.change(uuid, power_state=states.SHUTDOWN, went=True)
        finally:
            self._jobs.pop(uuid, None)

    def _fail(self, verb: str) -> None:
        raise NotImplementedError

    def _copy(self, instance: Instance, target: MigrationTarget, job: MigrationJob,
              on_progress: Callable[[MigrationProgress], None], cancelled: guest_driver.Cancelled) -> None:
        """Report progress during the configured latency of live_migrate."""
        seconds = self._latency("live_migrate")
        memory, disk = instance.flavor.memory_mb * _MIB, 0 if target.shared else instance.flavor.root_gb * _GIB
        began = time.monotonic()
        reported = -1
        while True:
            if cancelled.is_set() or job.aborted:
                raise exception.MigrationCancelled()
            done = min(1.0, (time.monotonic() - began) / seconds) if seconds and not job.forced else 1.0
            if int(done * _REPORTS) > reported:
                reported = int(done * _REPORTS)
                on_progress(MigrationProgress(
                    memory_total=memory, memory_processed=int(memory * done),
                    memory_remaining=memory - int(memory * done), disk_total=disk, disk_processed=int(disk * done),
                    disk_remaining=disk - int(disk * done)))
            if done == 1.0:
                return
            time.sleep(min(_TICK, seconds))

    def abort_migration(self, uuid: str) -> None:
        job = self._jobs.get(uuid)
        if job is not None:
            job.aborted = True

    def force_complete_migration(self, uuid: str) -> None:
        job = self._jobs.get(uuid)
        if job is not None:
            job.forced = True

    # --- live migration: the destination --------------------------------------------------------------
    def prepare_migration(self, instance: Instance, source: MigrationSource,
                          block: bool | None = None) -> MigrationTarget:
        self._behave("prepare_migration")
        uuid = instance.uuid
        self.take_over(instance.uuid)
        guest = self._guests.find(uuid)
        if guest is not None and not guest.incoming and not guest.went:
            raise exception.MigrationPreCheckError(reason=f"the guest is on {self.host} already")
        disk = self._disks.get(uuid)
        shared = disk is not None and disk.token == source.token
        local = bool(source.disks)
        if local and block is not None and block == shared:
            raise exception.MigrationPreCheckError(
                reason=f"{source.host} and {self.host} {'share' if shared else 'do not share'} the server's disks")
        if local and not shared:
            self._disks.put(uuid, fake_disks.made(self.host, source.disks[0].size // _GIB))
        self._arrivals.forget(uuid, self.host)
        self._guests.define(instance, source.power_state, incoming=True, went=False)
        return MigrationTarget(host=self.host, uri=f"fake://{self.host}", address=CONF.my_ip, shared=shared,
                               copied=["disk"] if local and not shared else [], network_info=instance.network_info)

    def finish_migration(self, instance: Instance) -> None:
        self._behave("finish_migration")
        self.take_over(instance.uuid)
        guest = self._guests.get(instance.uuid)
        self._guests.define(instance, guest.power_state, incoming=False)
        disk = self._disks.get(instance.uuid)
        if disk is not None:
            self._disks.put(instance.uuid, disk._replace(host=self.host))

    def rollback_migration(self, instance: Instance, target: MigrationTarget) -> None:
        self._behave("rollback_migration")
        self.take_over(instance.uuid)
        guest = self._guests.find(instance.uuid)
        if guest is not None and not guest.incoming:
            raise exception.MigrationError(reason=f"the guest has already arrived: it runs on {self.host}")
        self._guests.remove(instance.uuid)
        if guest is not None and not target.shared:
            self._disks.remove(instance.uuid)


def _files(disk: fake_disks.Disk | None) -> list[DiskFile]:
    """Return the disk files that another host copies, even a disk of 0 GiB, whose size is that of its image."""
    return [DiskFile(name="disk", size=disk.gb * _GIB)] if disk is not None else []


def _check_growth(have_gb: int, flavor: Flavor) -> None:
    if flavor.root_gb and flavor.root_gb < have_gb:
        raise exception.ResizeError(reason=f"a root disk of {have_gb} GiB cannot shrink to {flavor.root_gb} GiB")
