"""The standardised diagnostics of a guest (2.48)."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from typing import Any

import libvirt

from nova.objects import states
from nova.objects.instance import Instance
from nova.virt.libvirt import power

_STATE_NAMES = {states.NOSTATE: "pending", states.RUNNING: "running", states.POWER_PAUSED: "paused",
                states.SHUTDOWN: "shutdown", states.CRASHED: "crashed", states.POWER_SUSPENDED: "suspended"}


def collect(connection: libvirt.virConnect, domain: libvirt.virDomain, instance: Instance) -> dict[str, Any]:
    """What is known now; a guest that is off has no counters."""
    (_domain, stats), = connection.domainListGetStats([domain], 0, 0)
    root = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 - libvirt's own output
    disks = [_disk(stats, n) for n in range(stats.get("block.count", 0))]
    nics = [_nic(stats, n, mac.get("address")) for n, mac in enumerate(root.findall("devices/interface/mac"))]
    launched = instance.launched_at
    running = bool(domain.isActive())
    return {
        "state": _STATE_NAMES.get(power.state(domain), "pending"), "driver": "libvirt",
        "hypervisor": root.get("type"), "hypervisor_os": "linux", "config_drive": instance.config_drive,
        "uptime": int(time.time() - launched.timestamp()) if launched and running else None,
        "num_cpus": instance.flavor.vcpus, "num_nics": len(nics), "num_disks": len(disks),
        "cpu_details": [_cpu(stats, n) for n in range(stats.get("vcpu.current", 0))] if running else [],
        "nic_details": nics, "disk_details": disks,
        "memory_details": {"maximum": stats.get("balloon.maximum", 0) // 1024 or None,
                           "used": stats.get("balloon.current", 0) // 1024 or None},
    }


def _cpu(stats: dict[str, Any], number: int) -> dict[str, Any]:
    return {"id": number, "time": stats.get(f"vcpu.{number}.time"), "utilisation": None}


def _disk(stats: dict[str, Any], number: int) -> dict[str, Any]:
    def value(name: str) -> Any:
        return stats.get(f"block.{number}.{name}")

    return {"read_bytes": value("rd.bytes"), "read_requests": value("rd.reqs"), "write_bytes": value("wr.bytes"),
            "write_requests": value("wr.reqs"), "errors_count": value("errors")}


def _nic(stats: dict[str, Any], number: int, mac: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"mac_address": mac}
    for ours, theirs in (("rx", "rx"), ("tx", "tx")):
        for name, key in (("octets", "bytes"), ("errors", "errs"), ("drop", "drop"), ("packets", "pkts")):
            found[f"{ours}_{name}"] = stats.get(f"net.{number}.{theirs}.{key}")
        found[f"{ours}_rate"] = None
    return found
