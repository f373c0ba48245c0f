"""The diagnostics of a guest, from /proc and the counters of its tap devices."""

import os
import time
from typing import Any

from nova.objects.servers import states
from nova.objects.servers.guest import Diagnostics
from nova.objects.servers.instance import Instance
from nova.virt.uml import process, taps
from nova.virt.uml.definition import Definition

_STATE_NAMES = {**states.POWER_STATES, states.NOSTATE: "pending"}
_COUNTERS = ("read_bytes", "read_requests", "write_bytes", "write_requests", "errors_count")
_FLAT_NIC = {"rx": "rx_octets", "rx_drop": "rx_drop", "rx_errors": "rx_errors", "rx_packets": "rx_packets",
             "tx": "tx_octets", "tx_drop": "tx_drop", "tx_errors": "tx_errors", "tx_packets": "tx_packets"}


def collect(place: str, stored: Definition, power_state: int, instance: Instance) -> Diagnostics:
    """Return the guest's current diagnostics. Counters of a stopped guest, and of disks, do not exist."""
    pid = process.kernel_pid(place)
    cpu_time, resident_kb, seconds = _usage(pid) if pid else (None, None, None)
    nics = [{"mac_address": nic.mac, "rx_rate": None, "tx_rate": None, **taps.statistics(nic)} for nic in stored.nics]
    values: dict[str, Any] = {
        "state": _STATE_NAMES.get(power_state, "pending"), "driver": "uml", "hypervisor": "uml",
        "hypervisor_os": "linux", "uptime": seconds, "config_drive": instance.config_drive, "num_cpus": 1,
        "num_nics": len(nics), "num_disks": len(stored.disks), "nic_details": nics,
        "cpu_details": [{"id": 0, "time": cpu_time, "utilisation": None}] if pid else [],
        "disk_details": [dict.fromkeys(_COUNTERS) for _disk in stored.disks],
        "memory_details": {"maximum": stored.memory_mb, "used": resident_kb // 1024 if resident_kb is not None else 0}}
    flat: dict[str, Any] = {"memory": stored.memory_mb * 1024}
    if pid:
        flat |= {"cpu0_time": cpu_time, "memory-rss": resident_kb}
        flat |= {f"{nic.device}_{name}": counters[counter] for nic, counters in zip(stored.nics, nics, strict=True)
                 for name, counter in _FLAT_NIC.items() if counter in counters}
    return Diagnostics(values=values, flat=flat)


def _usage(group: int) -> tuple[int, int, int]:
    """Return CPU time in ns and resident memory in KiB of a process group, and the age of its leader in seconds."""
    ticks = pages = seconds = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
            # Processes of the guest map the memory of the kernel, which counts once.
            pages = max(pages, int(fields[21]))
            if int(name) == group:
                seconds = int(time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    return (ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK")), pages * os.sysconf("SC_PAGE_SIZE") // 1024, seconds)
