"""Diagnostics of virtual guests: current devices and constant counters."""

from __future__ import annotations

import time
from typing import Any

from nova.objects.servers import states
from nova.objects.servers.guest import Diagnostics
from nova.objects.servers.instance import Instance
from nova.virt.fake.guests import Guest

_STATES = {**states.POWER_STATES, states.NOSTATE: "pending"}
_CPU_TIME = 17_300_000_000
_DISK = {"read_bytes": 262144, "read_requests": 112, "write_bytes": 5778432, "write_requests": 488, "errors_count": 0}
_FLAT_DISK = {"errors": -1, "read": 262144, "read_req": 112, "write": 5778432, "write_req": 488}
_FLAT_NIC = {"rx": 2070139, "rx_drop": 0, "rx_errors": 0, "rx_packets": 26701, "tx": 140208, "tx_drop": 0,
             "tx_errors": 0, "tx_packets": 662}
_NIC = {"rx_octets": 2070139, "rx_errors": 0, "rx_drop": 0, "rx_packets": 26701, "rx_rate": None, "tx_octets": 140208,
        "tx_errors": 0, "tx_drop": 0, "tx_packets": 662, "tx_rate": None}


def collect(guest: Guest, instance: Instance) -> Diagnostics:
    running = guest.power_state in (states.RUNNING, states.POWER_PAUSED)
    disks = ["vda", *(device.removeprefix("/dev/") for device, _volume in guest.volumes)]
    values: dict[str, Any] = {
        "state": _STATES[guest.power_state], "driver": "fake", "hypervisor": "fake", "hypervisor_os": "linux",
        "uptime": int(time.time()) - guest.booted[-1] if running and guest.booted else None,
        "config_drive": instance.config_drive, "num_cpus": guest.size.vcpus, "num_nics": len(guest.interfaces),
        "num_disks": len(disks),
        "cpu_details": [{"id": number, "time": _CPU_TIME, "utilisation": None} for number in range(guest.size.vcpus)]
        if running else [],
        "disk_details": [dict(_DISK) for _disk in disks],
        "nic_details": [{"mac_address": mac, **_NIC} for mac in guest.interfaces],
        "memory_details": {"maximum": guest.size.memory_mb, "used": guest.size.memory_mb if running else 0}}
    flat = {"memory": guest.size.memory_mb * 1024}
    if running:
        flat |= {f"cpu{number}_time": _CPU_TIME for number in range(guest.size.vcpus)}
        flat |= {f"{disk}_{name}": value for disk in disks for name, value in _FLAT_DISK.items()}
        flat |= {f"vnet{number}_{name}": value for number in range(len(guest.interfaces))
                 for name, value in _FLAT_NIC.items()}
    return Diagnostics(values=values, flat=flat)
