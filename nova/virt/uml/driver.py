"""The User Mode Linux driver: guests are Linux kernels that run as unprivileged processes of the host.

A guest is a directory with its definition, its disks and the files of its processes (:mod:`nova.virt.uml.supervisor`).
No daemon is needed, and guests survive nova-compute. The kernel of all guests is that of the host's package: images are
root file systems, or disks with a partition table."""

import logging
import os
import re
import shutil
import socket
import subprocess

from nova import exception
from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode
from nova.virt import host_report
from nova.virt.driver import Driver, EventHandler, HostCpu
from nova.virt.guest_files import directories
from nova.virt.uml import definition, process
from nova.virt.uml.cold_migration import ColdMigration
from nova.virt.uml.guests import ARCHITECTURE, TRAITS, Guests
from nova.virt.uml.roles import Consoles, Disks, Interfaces, Power, Rescue, Snapshots, Volumes

LOG = logging.getLogger(__name__)

_GIB = 1 << 30
_KIB_PER_MIB = 1024


class UmlDriver(Driver):
    """The driver of one host. Actions on one guest are serialized, with two exceptions: no action waits for a guest
    that shuts down slowly, and a delete or hard reboot does not wait for an action that hangs."""

    capabilities = frozenset({"console_output", "diagnostics", "pause", "attach_volume", "attach_interface", "move",
                              "snapshot"})

    def __init__(self, host: str) -> None:
        self._guests = guests = Guests(host)
        super().__init__(host=host, guests=guests, disks=Disks(guests), power=Power(guests), consoles=Consoles(guests),
                         rescue=Rescue(guests), snapshots=Snapshots(guests), volumes=Volumes(guests),
                         interfaces=Interfaces(guests), cold_migration=ColdMigration(guests))
        self._version = 0

    def start(self, on_event: EventHandler) -> None:
        self._version = _kernel_version()
        directories.make_instances_path()
        self._guests.watcher.start(on_event)
        for place, stored in definition.all_of_host():
            if not self._guests.exists(stored.uuid):
                continue  # Another host on the same file system owns the guest.
            if process.is_running(place):
                self._guests.watcher.watch(stored.uuid, place, report=False)
                self._end_copy(stored.uuid)
            else:
                self._guests.ended(stored.uuid)

    def _end_copy(self, uuid: str) -> None:
        """Continue a guest that a previous nova-compute stopped for a disk copy and did not continue before its end."""
        try:
            with self._guests.locks.hold(uuid):
                self._guests.end_copy(uuid)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Cannot continue the guest after an interrupted copy of its disk; reboot it if "
                        "it does not respond: %s", uuid, error)

    def stop(self) -> None:
        self._guests.watcher.stop()

    def nodes(self) -> list[ComputeNode]:
        name = host_report.node_name(self.host, socket.gethostname())
        identity = host_report.node_uuid(self.host, name)
        usage = shutil.disk_usage(CONF.instances_path)
        cpus = os.cpu_count() or 1
        # Guests' memory is in files of this file system. If it is full, guests that need a new memory page are killed.
        memory_mb = min(_memory_mb(), shutil.disk_usage(CONF.uml.memory_directory).total >> 20)
        inventories = host_report.inventories(cpus, memory_mb, usage.total)
        # A guest has one CPU, so the scheduler must not place flavors with more.
        inventories["VCPU"].max_unit = 1
        return [ComputeNode(
            uuid=identity, host=self.host, hypervisor_hostname=name, hypervisor_type="uml",
            hypervisor_version=self._version, host_ip=CONF.my_ip, cpu_info=_cpu_info(cpus),
            supported_instances=[(ARCHITECTURE, "uml", "uml")], uptime=host_report.uptime(),
            disk_available_least=usage.free // _GIB,
            provider=host_report.provider(identity, name, inventories, TRAITS))]

    def host_cpu(self) -> HostCpu:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, kernel, idle, iowait = map(int, file.readline().split()[1:6])
        nanoseconds = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return HostCpu(frequency=int(_cpu_fact("cpu MHz", "0").partition(".")[0]), user=(user + nice) * nanoseconds,
                       kernel=kernel * nanoseconds, idle=idle * nanoseconds, iowait=iowait * nanoseconds)


def _kernel_version() -> int:
    """Return the version of the guests' kernel as a number, such as 6,001,002 for 6.1.2. Raises NotSupported."""
    try:
        done = subprocess.run([CONF.uml.kernel, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise exception.NotSupported(f"Cannot run the User Mode Linux kernel [uml]kernel = {CONF.uml.kernel}: {error}. "
                                     "Debian's package is user-mode-linux.") from error
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout.strip())
    if match is None:
        raise exception.NotSupported(f"[uml]kernel = {CONF.uml.kernel} is not a User Mode Linux kernel.")
    major, minor, patch = (int(number or 0) for number in match.groups())
    return major * 1_000_000 + minor * 1_000 + patch


def _memory_mb() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(file.readline().split()[1]) // _KIB_PER_MIB


def _cpu_info(cpus: int) -> dict[str, object]:
    return {"arch": ARCHITECTURE, "model": _cpu_fact("model name", "unknown"),
            "vendor": _cpu_fact("vendor_id", "unknown"), "features": _cpu_fact("flags", "").split(),
            "topology": {"cores": cpus, "threads": 1, "sockets": 1}}


def _cpu_fact(name: str, default: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return default
