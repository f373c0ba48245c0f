"""Live migration, on the source host and on the destination host.

The libvirtd of the source executes the migration (peer to peer). So the migration continues when nova-compute stops; a
restarted nova-compute finds it and follows it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import libvirt
import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskFile, DiskSource, MigrationProgress, MigrationSource, MigrationTarget
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.guest_files import directories, disk_server, peers
from nova.virt.guest_locks import LOCK_TIMEOUT
from nova.virt.images import qemuimg
from nova.virt.libvirt import errors, power
from nova.virt.libvirt.files import copies
from nova.virt.libvirt.guests import Guests, Role
from nova.virt.libvirt.xml import migration_xml
from nova.virt.libvirt.xml.definition import Definition

LOG = logging.getLogger(__name__)

_GIB = 1 << 30
# Seconds between two polls of a migration.
_POLL_INTERVAL = 0.5
_MIGRATABLE = libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE
_COMPLETED = libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED
_INACTIVE = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE

OnProgress = Callable[[MigrationProgress], None]


class LiveMigrationSource(Role, guest_driver.LiveMigrationSource):
    def check(self, instance: Instance) -> MigrationSource:
        uuid = instance.uuid
        if not self._guests.is_active(uuid):
            raise exception.MigrationPreCheckError(reason="the guest is not running")
        text = self._guests.on_domain(uuid, lambda domain: domain.XMLDesc(_MIGRATABLE))
        power_state = self._guests.power_state(uuid)
        version = self._guests.host.call(lambda connection: connection.getVersion())
        place = directories.directory(uuid)
        token = directories.token(place, self._guests.name)
        files, bases = copies.describe(place)
        root = ET.fromstring(text)  # noqa: S314 - libvirt's own output
        cpu = root.find("cpu")
        changing = {os.path.basename(source.get("file", "")) for source in root.findall(
            "devices/disk[@device='disk']/source")}
        still = [file for file in files if file.name not in changing]
        host = self._guests.name
        served = copies.serve(uuid, place, host, still, bases) if still or bases else DiskSource(host=host)
        return MigrationSource(
            host=host, token=token, disks=[file for file in files if file.name in changing], served=served,
            cpu=ET.tostring(cpu, encoding="unicode") if cpu is not None else "",
            machine=Definition(text).machine, hypervisor_version=version, memory_mb=instance.flavor.memory_mb,
            power_state=power_state, architecture=Definition(text).architecture)

    def migrate(self, instance: Instance, target: MigrationTarget, on_progress: OnProgress,
                cancelled: Cancelled) -> None:
        uuid = instance.uuid
        disk_server.stop(uuid)
        with self._guests.locks.hold(uuid):
            if self._is_over(uuid, target):
                return
            watch = _Watch(self._guests, uuid, on_progress, cancelled)
            try:
                if self._guests.on_domain(uuid, is_leaving):
                    LOG.info("[instance: %s] Live migration to host %s is already running: following it",
                             uuid, target.host)
                    watch.until(lambda seconds: _wait_while_leaving(self._guests, uuid, seconds))
                    failure = None
                else:
                    failure = self._run(instance, target, watch)
                if not self._is_over(uuid, target):
                    raise watch.failed(failure)
            except exception.NovaException:
                self._resume_here(instance)
                raise
            watch.report_end()
        LOG.info("[instance: %s] Live migration completed: the guest runs on host %s", uuid, target.host)

    def force_complete(self, uuid: str) -> None:
        self._guests.on_domain_or(uuid, _force, None)

    def _run(self, instance: Instance, target: MigrationTarget, watch: _Watch) -> libvirt.libvirtError | None:
        """Start the migration and wait for its end; return the error of libvirt, or None."""
        uuid = instance.uuid
        running = self._guests.on_domain(uuid, lambda domain: domain.XMLDesc(_MIGRATABLE))
        uri, parameters = peers.uri(target.address), self._parameters(uuid, running, target)
        flags = _flags(target)
        failures: list[libvirt.libvirtError] = []
        ended = threading.Event()
        connection = self._guests.host.connection()

        def migrate() -> None:
            try:
                connection.lookupByUUIDString(uuid).migrateToURI3(uri, parameters, flags)
            except libvirt.libvirtError as error:
                failures.append(error)
            finally:
                ended.set()

        LOG.info("[instance: %s] Live migration to host %s started, %s", uuid, target.host,
                 f"with {', '.join(target.copied)}" if target.copied else "without disks")
        threading.Thread(target=migrate, name=f"migrate-{uuid[:8]}", daemon=True).start()
        watch.until(ended.wait)
        return failures[0] if failures else None

    def _parameters(self, uuid: str, running: str, target: MigrationTarget) -> dict[str, Any]:
        stored = self._guests.on_domain(uuid, lambda domain: domain.XMLDesc(_INACTIVE))
        parameters: dict[str, Any] = {
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: migration_xml.for_destination(running, target.definition),
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: migration_xml.for_destination(stored, target.definition),
            libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{peers.in_url(target.address)}",
            libvirt.VIR_MIGRATE_PARAM_LISTEN_ADDRESS: target.address}
        options = CONF.libvirt
        if options.live_migration_bandwidth:
            parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = options.live_migration_bandwidth
        if options.live_migration_parallel_connections > 1:
            parameters[libvirt.VIR_MIGRATE_PARAM_PARALLEL_CONNECTIONS] = options.live_migration_parallel_connections
        if target.copied:
            parameters[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = migration_xml.targets(running, target.copied)
        return parameters

    def _is_over(self, uuid: str, target: MigrationTarget) -> bool:
        """Return True if the guest stopped on this host because it was migrated to the target."""
        active, reason = self._guests.on_domain(uuid, lambda domain: (domain.isActive(), domain.state()[1]))
        if active:
            return False
        if reason == libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED:
            return True
        # A libvirtd that was restarted meanwhile has lost the reason: query the destination.
        return runs_at(peers.uri(target.address), uuid)

    def _resume_here(self, instance: Instance) -> None:
        """Resume a guest that _force() paused to complete its migration, unless the user has paused the server."""
        def resume(domain: libvirt.virDomain) -> None:
            state, reason = domain.state()
            if state == libvirt.VIR_DOMAIN_PAUSED and reason == libvirt.VIR_DOMAIN_PAUSED_USER:
                domain.resume()

        if instance.vm_state != states.PAUSED:
            with contextlib.suppress(exception.NovaException, libvirt.libvirtError):
                self._guests.on_domain(instance.uuid, resume)


@dataclasses.dataclass
class _Watch:
    """A monitor of a migration: reports its progress, and ends it when it exceeds its time limit or is cancelled."""

    _guests: Guests
    _uuid: str
    _on_progress: OnProgress
    _cancelled: Cancelled
    _began: float = dataclasses.field(default_factory=time.monotonic)
    _reported_at: float = float("-inf")
    _downtime: int = 0
    _late: bool = False
    _aborted: bool = False
    _last: MigrationProgress = dataclasses.field(default_factory=MigrationProgress)
    _size: int = 0  # total bytes of memory and disks, the maximum that libvirt reported

    def until(self, ended: Callable[[float], bool]) -> None:
        """Poll until the migration ends. ``ended(seconds)`` waits up to ``seconds``; returns True after the end."""
        while not ended(_POLL_INTERVAL):
            try:
                self._guests.on_domain(self._uuid, self._poll)
            except (libvirt.libvirtError, exception.NovaException) as error:
                # The migration has just ended, or libvirtd is unavailable: ended() detects the end.
                LOG.debug("[instance: %s] Cannot read the progress of the live migration: %s", self._uuid, error)

    def report_end(self) -> None:
        """Report the progress of a completed migration: nothing remains to copy."""
        last = self._last
        with contextlib.suppress(libvirt.libvirtError, exception.NovaException):
            # A libvirtd that was restarted meanwhile has lost the job's statistics.
            ended = self._guests.on_domain(self._uuid, lambda domain: domain.jobStats(_COMPLETED))
            last = _progress(ended) if ended.get("memory_total") else last
        self._on_progress(msgspec.structs.replace(last, memory_remaining=0, memory_processed=last.memory_total,
                                                  disk_remaining=0, disk_processed=last.disk_total))

    def failed(self, error: libvirt.libvirtError | None) -> exception.NovaException:
        """Return the outcome of a migration whose guest never left this host."""
        if self._late:
            return exception.MigrationError(reason=f"it did not end within {self._allowed():.0f} s")
        if self._aborted or (error is not None and error.get_error_code() == libvirt.VIR_ERR_OPERATION_ABORTED):
            return exception.MigrationCancelled()
        if error is None:
            return exception.MigrationError(reason="it ended, but the guest did not arrive on the target host")
        LOG.warning("[instance: %s] Live migration failed, rolling it back: %s", self._uuid, error)
        return exception.MigrationError(reason=str(error.get_error_message()))

    def _poll(self, domain: libvirt.virDomain) -> None:
        stats = domain.jobStats()
        if stats.get("type", libvirt.VIR_DOMAIN_JOB_NONE) == libvirt.VIR_DOMAIN_JOB_NONE:
            return
        progress = _progress(stats)
        if progress.disk_total and not progress.memory_total:
            # Disks are copied first. Meanwhile libvirt reports no memory: all of the guest's memory remains.
            progress.memory_total = progress.memory_remaining = domain.maxMemory() * 1024
        progress.post_copy = _in_post_copy(domain)
        size = progress.memory_total + progress.disk_total
        now = time.monotonic()
        # libvirt reports no sizes in the beginning.
        if size and now - self._reported_at >= CONF.libvirt.live_migration_monitor_interval:
            self._reported_at = now
            self._last = progress
            self._on_progress(progress)
        if self._cancelled.is_set() and not self._aborted:
            LOG.info("[instance: %s] Cancelling the live migration", self._uuid)
            self._aborted = True
            _abort(domain)
        if 0 < self._allowed(size) < now - self._began and not self._late:
            self._late = True
            action = CONF.libvirt.live_migration_timeout_action
            LOG.warning("[instance: %s] Live migration exceeds its time limit of %.0f s, action: %s",
                        self._uuid, self._allowed(), action)
            (_force if action == "force_complete" else _abort)(domain)
        self._raise_downtime(domain, now - self._began, size)

    def _allowed(self, size: int = 0) -> float:
        """Return the time limit in seconds, or 0 for none."""
        self._size = max(self._size, size)
        return float(CONF.libvirt.live_migration_completion_timeout) * max(2, -(-self._size // _GIB))

    def _raise_downtime(self, domain: libvirt.virDomain, elapsed: float, size: int) -> None:
        """Raise the allowed downtime step by step, since a busy guest may need more for its migration to complete."""
        options = CONF.libvirt
        steps, most = options.live_migration_downtime_steps, options.live_migration_downtime
        delay = options.live_migration_downtime_delay * max(1, size // _GIB)
        step = min(steps, 1 + int(elapsed // max(1, delay)))
        downtime = max(1, most * step // steps)
        if downtime > self._downtime:
            self._downtime = downtime
            domain.migrateSetMaxDowntime(downtime)


def is_leaving(domain: libvirt.virDomain) -> bool:
    """Return True if an outgoing migration of the domain is in progress."""
    stats = domain.jobStats()
    return bool(stats.get("type", libvirt.VIR_DOMAIN_JOB_NONE) != libvirt.VIR_DOMAIN_JOB_NONE
                and stats.get("operation") == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT)


def runs_at(uri: str, uuid: str) -> bool:
    """Return True if the guest runs under the libvirtd at ``uri``. Raises MigrationError if the query fails."""
    try:
        with contextlib.closing(libvirt.openReadOnly(uri)) as there:
            return bool(there.lookupByUUIDString(uuid).isActive())
    except libvirt.libvirtError as error:
        if errors.is_missing(error):
            return False
        raise exception.MigrationError(reason=f"cannot query the guest on the destination: {error}") from error


def _wait_while_leaving(guests: Guests, uuid: str, seconds: float) -> bool:
    time.sleep(seconds)
    try:
        return not guests.on_domain(uuid, is_leaving)
    except libvirt.libvirtError:
        return True  # The guest is stopped.


def _flags(target: MigrationTarget) -> int:
    options = CONF.libvirt
    # libvirt recognizes few shared file systems; the prechecks have verified that both hosts share these files.
    flags = (libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | libvirt.VIR_MIGRATE_PERSIST_DEST
             | libvirt.VIR_MIGRATE_UNSAFE)
    for wanted, flag in ((target.copied and target.incremental, libvirt.VIR_MIGRATE_NON_SHARED_INC),
                         (target.copied and not target.incremental, libvirt.VIR_MIGRATE_NON_SHARED_DISK),
                         (options.live_migration_permit_post_copy, libvirt.VIR_MIGRATE_POSTCOPY),
                         (options.live_migration_permit_auto_converge, libvirt.VIR_MIGRATE_AUTO_CONVERGE),
                         (options.live_migration_with_native_tls, libvirt.VIR_MIGRATE_TLS),
                         (options.live_migration_parallel_connections > 1, libvirt.VIR_MIGRATE_PARALLEL)):
        if wanted:
            flags |= flag
    return int(flags)


def _progress(stats: dict[str, Any]) -> MigrationProgress:
    names = ("memory_total", "memory_processed", "memory_remaining", "disk_total", "disk_processed", "disk_remaining")
    return msgspec.convert({name: int(stats.get(name, 0)) for name in names}, MigrationProgress)


def _in_post_copy(domain: libvirt.virDomain) -> bool:
    return tuple(domain.state()) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY)


def _abort(domain: libvirt.virDomain) -> None:
    if is_leaving(domain) and not _in_post_copy(domain):
        domain.abortJob()


def _force(domain: libvirt.virDomain) -> None:
    if not is_leaving(domain):
        return
    if CONF.libvirt.live_migration_permit_post_copy:
        domain.migrateStartPostCopy(0)
    elif domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING:
        domain.suspend()


# --- destination -------------------------------------------------------------------------------------
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
                served = msgspec.structs.replace(source.served or DiskSource(host=""), host=source.host)
                copies.check_allowed(instance, [*served.files, *source.disks], served.bases)
                place = copies.begin(uuid, source.token, host)
                for file in served.files:
                    copies.receive(instance, place, file, served)
                for disk in source.disks:  # empty disks on top of their backing images
                    copies.check_name(disk)
                    base = copies.base_of(instance, disk, served)
                    directories.once(place, disk.name, functools.partial(_make_empty, disk, base))
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
            # Resume a guest that was paused only to complete the migration.
            if instance.vm_state != states.PAUSED:
                self._guests.on_domain(uuid, power.unpause)

    def rollback(self, instance: Instance, target: MigrationTarget) -> None:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT):
            if self._runs_here(uuid):
                raise exception.MigrationError(reason=f"no rollback: the guest already runs on {self._guests.name}")
            if self._guests.exists(uuid):
                self._guests.on_domain(uuid, lambda domain: power.remove(domain, keep_nvram=True))
            self._guests.forget_keys(uuid)
            if not target.shared and copies.is_incomplete(uuid):
                directories.remove(uuid, self._guests.name)

    def _runs_here(self, uuid: str) -> bool:
        def query(domain: libvirt.virDomain) -> bool:
            return bool(domain.isActive()) and not power.is_arriving(domain)

        return self._guests.on_domain_or(uuid, query, False)

    def _check(self, source: MigrationSource) -> None:
        """Check that the guest can run on this host. Raises MigrationPreCheckError."""
        guest = self._guests.settings.architecture(source.architecture)
        if guest is None:
            raise exception.MigrationPreCheckError(
                reason=f"{self._guests.name} has no QEMU for guests of the architecture {source.architecture}")
        if guest.machines and source.machine not in guest.machines:
            raise exception.MigrationPreCheckError(reason=f"{self._guests.name} has no machine type {source.machine}")
        if self._guests.host.call(lambda connection: connection.getVersion()) < source.hypervisor_version:
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
