"""The diagnostics of a guest, from its statistics in vCenter."""

from typing import Any

from nova.objects.servers import states
from nova.objects.servers.guest import Diagnostics
from nova.objects.servers.instance import Instance
from nova.virt.vmware.machines import Facts

PATHS = ("summary.quickStats", "summary.config", "runtime.maxCpuUsage")
_STATE_NAMES = {**states.POWER_STATES, states.NOSTATE: "pending"}
_DISK_COUNTERS = ("read_bytes", "read_requests", "write_bytes", "write_requests", "errors_count")
_NIC_COUNTERS = tuple(f"{way}_{name}" for way in ("rx", "tx") for name in (
    "octets", "errors", "drop", "packets", "rate"))
_KIB = 1024


def collect(values: dict[str, Any], facts: Facts, power_state: int, instance: Instance) -> Diagnostics:
    """Return the current diagnostics. vCenter has no counters for single CPUs, disks and interfaces."""
    stats, config = values["summary.quickStats"], values["summary.config"]
    running = power_state == states.RUNNING
    most = values["runtime.maxCpuUsage"] or 0
    share = min(100, 100 * (stats.overallCpuUsage or 0) // most) if most else None
    standard: dict[str, Any] = {
        "state": _STATE_NAMES.get(power_state, "pending"), "driver": "vmwareapi", "hypervisor": "vmware",
        "hypervisor_os": "esxi", "uptime": stats.uptimeSeconds if running else None,
        "config_drive": instance.config_drive, "num_cpus": config.numCpu, "num_nics": len(facts.nics),
        "num_disks": len(facts.slots.devices),
        "cpu_details": [{"id": number, "time": None, "utilisation": share} for number in range(config.numCpu)]
        if running else [],
        "nic_details": [{"mac_address": mac, **dict.fromkeys(_NIC_COUNTERS)} for mac in facts.nics],
        "disk_details": [dict.fromkeys(_DISK_COUNTERS) for _disk in facts.slots.devices],
        "memory_details": {"maximum": config.memorySizeMB, "used": stats.guestMemoryUsage or 0}}
    flat = {"memory": config.memorySizeMB * _KIB}
    for name, value in (("overallCpuUsage", stats.overallCpuUsage), ("guestMemoryUsage", stats.guestMemoryUsage),
                        ("hostMemoryUsage", stats.hostMemoryUsage), ("uptimeSeconds", stats.uptimeSeconds)):
        if running and value is not None:
            flat[name] = int(value)
    return Diagnostics(values=standard, flat=flat)
