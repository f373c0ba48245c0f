"""The diagnostics of a guest: the standardized form (API 2.48), and the older flat form with libvirt's device names."""

import time
import xml.etree.ElementTree as ET
from typing import Any

import libvirt

from nova.objects.servers import states
from nova.objects.servers.guest import Diagnostics
from nova.objects.servers.instance import Instance
from nova.virt.libvirt import power
from nova.virt.libvirt.xml.xmltree import attribute

_STATE_NAMES = {**states.POWER_STATES, states.NOSTATE: "pending"}
# Names of Nova -> names of libvirt (_FLAT_...: names of the flat form -> names of libvirt).
_DISK = {"read_bytes": "rd.bytes", "read_requests": "rd.reqs", "write_bytes": "wr.bytes", "write_requests": "wr.reqs",
         "errors_count": "errors"}
_FLAT_DISK = {"read": "rd.bytes", "read_req": "rd.reqs", "write": "wr.bytes", "write_req": "wr.reqs",
              "errors": "errors"}
_FLAT_NIC = {f"{way}{name}": f"{way}.{key}" for way in ("rx", "tx") for name, key in (
    ("", "bytes"), ("_errors", "errs"), ("_drop", "drop"), ("_packets", "pkts"))}
_NIC = {f"{way}_{name}": f"{way}.{key}" for way in ("rx", "tx") for name, key in (
    ("octets", "bytes"), ("errors", "errs"), ("drop", "drop"), ("packets", "pkts"))}
_NIC_COUNTERS = [f"{way}.{key}" for way in ("rx", "tx") for key in ("bytes", "pkts", "errs", "drop")]
_FLAT_MEMORY = {"memory": "maximum", "memory-actual": "current", "memory-rss": "rss"}


def collect(connection: libvirt.virConnect, domain: libvirt.virDomain, instance: Instance) -> Diagnostics:
    """Return the guest's current diagnostics. A stopped guest has no counters."""
    try:
        (_domain, stats), = connection.domainListGetStats([domain], 0, 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
        stats = _stats_of_container(domain)
    return Diagnostics(values=_values(domain, instance, stats), flat=_flat(stats))


def _stats_of_container(domain: libvirt.virDomain) -> dict[str, Any]:
    """Return the counters of a container by the names of domainListGetStats. libvirt has only the sum of the CPU times,
    which is reported as the time of CPU 0. Disks have no counters."""
    root = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 - libvirt's own output
    disks = ["/", *(attribute(item, "target", "dev") for item in root.findall("devices/disk"))]
    nics = [attribute(item, "target", "dev") for item in root.findall("devices/interface")]
    _state, maximum, current, _cpus, time_used = domain.info()
    stats: dict[str, Any] = {"balloon.maximum": maximum, "block.count": len(disks), "net.count": len(nics)}
    stats |= {f"block.{number}.name": name for number, name in enumerate(disks)}
    if not domain.isActive():
        return stats
    stats |= {"balloon.current": current, "balloon.rss": current, "vcpu.current": 1, "vcpu.0.time": time_used}
    for number, name in enumerate(nics):
        counters = zip(_NIC_COUNTERS, domain.interfaceStats(name), strict=True)
        stats |= {f"net.{number}.{key}": value for key, value in counters} | {f"net.{number}.name": name}
    return stats


def _flat(stats: dict[str, Any]) -> dict[str, int]:
    """Return the flat form. Memory in KiB, times in nanoseconds; -1: libvirt has no such counter."""
    values = {f"cpu{n}_time": stats.get(f"vcpu.{n}.time") for n in range(stats.get("vcpu.current", 0))}
    values |= {name: stats.get(f"balloon.{key}") for name, key in _FLAT_MEMORY.items()}
    for kind, names in (("block", _FLAT_DISK), ("net", _FLAT_NIC)):
        for n in range(stats.get(f"{kind}.count", 0)):
            device = stats.get(f"{kind}.{n}.name", n)
            if f"{kind}.{n}.rx.bytes" in stats or f"{kind}.{n}.rd.bytes" in stats:
                values |= {f"{device}_{name}": stats.get(f"{kind}.{n}.{key}", -1) for name, key in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def _values(domain: libvirt.virDomain, instance: Instance, stats: dict[str, Any]) -> dict[str, Any]:
    root = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 - libvirt's own output
    disks = [{name: stats.get(f"block.{n}.{key}") for name, key in _DISK.items()}
             for n in range(stats.get("block.count", 0))]
    nics = [{"mac_address": mac.get("address"), "rx_rate": None, "tx_rate": None,
             **{name: stats.get(f"net.{n}.{key}") for name, key in _NIC.items()}}
            for n, mac in enumerate(root.findall("devices/interface/mac"))]
    launched = instance.launched_at
    running = bool(domain.isActive())
    return {
        "state": _STATE_NAMES.get(power.state(domain), "pending"), "driver": "libvirt",
        "hypervisor": root.get("type"), "hypervisor_os": "linux", "config_drive": instance.config_drive,
        "uptime": int(time.time() - launched.timestamp()) if launched and running else None,
        "num_cpus": instance.flavor.vcpus, "num_nics": len(nics), "num_disks": len(disks),
        "cpu_details": [{"id": n, "time": stats.get(f"vcpu.{n}.time"), "utilisation": None}
                        for n in range(stats.get("vcpu.current", 0))] if running else [],
        "nic_details": nics, "disk_details": disks,
        "memory_details": {"maximum": stats.get("balloon.maximum", 0) // 1024 or None,
                           "used": stats.get("balloon.current", 0) // 1024 or None}}
