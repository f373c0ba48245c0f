"""Validation of flavor extra specs: names and values of the known namespaces."""

import functools
import re
from collections.abc import Callable

import os_resource_classes

from nova import exception
from nova.api.validation.keywords import matcher

# A function that takes a value and returns a description of the expected value, or None for a valid value.
Check = Callable[[str], str | None]

NAMESPACES = frozenset({"accel", "aggregate_instance_extra_specs", "capabilities", "hw", "hw_rng", "hw_video", "os",
                        "pci_passthrough", "quota", "resources", "trait", "vmware"})


class UnknownSpec(exception.Invalid,
                  template="Validation failed; extra spec '{name}' does not appear to be a valid extra spec."): ...
class BadSpec(exception.Invalid, template=(
        "Validation failed; '{value}' is not a valid value of extra spec '{name}': expected {expected}.")): ...


def validate(name: str, value: str) -> None:
    """Raise UnknownSpec or BadSpec for an invalid spec. Names outside of the known namespaces are not checked."""
    check = _find(name)
    if check is None:
        space, colon, _item = name.partition(":")
        # The namespaces resources and trait can have a group suffix ("trait1:"), but "traits:" belongs to Ironic.
        grouped = _GROUPED.fullmatch(name) if space != "traits" else None
        if colon and (grouped["space"] if grouped else space) in NAMESPACES:
            raise UnknownSpec(name=name)
    elif (expected := check(value)) is not None:
        raise BadSpec(name=name, value=value, expected=expected)


def _find(name: str) -> Check | None:
    exact = EXACT.get(name)
    if exact is not None or ":" not in name:
        return exact
    for pattern, check in PATTERNS:
        if pattern.fullmatch(name):
            return check
    grouped = _GROUPED.fullmatch(name)
    if grouped is None:
        return None
    is_resource = grouped["space"] == "resources"
    if not _CUSTOM.fullmatch(grouped["item"]) and grouped["item"] not in (
            os_resource_classes.STANDARDS if is_resource else _traits()):
        return None
    return _integer(0) if is_resource else _choice("required", "forbidden")


_GROUPED = re.compile(r"(?P<space>resources|trait)(?P<group>[a-zA-Z0-9_-]{1,64})?:(?P<item>.+)")
_CUSTOM = re.compile("CUSTOM_[A-Z0-9_]+")


@functools.cache
def _traits() -> frozenset[str]:
    import os_traits  # costs 2 MB, and is needed only for specs of traits

    return frozenset(os_traits.get_traits())


# --- kinds of values ----------------------------------------------------------------------------
_BOOLEANS = frozenset({"1", "t", "true", "on", "y", "yes", "0", "f", "false", "off", "n", "no"})


def _boolean(value: str) -> str | None:
    return None if value.strip().lower() in _BOOLEANS else "a boolean"


def _anything(_value: str) -> str | None:
    return None


def _integer(least: int | None = None, most: int | None = None) -> Check:
    limits = "".join((f" of at least {least}" if least is not None else "",
                      f" and at most {most}" if most is not None else ""))

    def check(value: str) -> str | None:
        if re.fullmatch(r"[+-]?[0-9]+", value):
            number = int(value)
            if (least is None or number >= least) and (most is None or number <= most):
                return None
        return f"an integer{limits}"

    return check


def _choice(*values: str) -> Check:
    return lambda value: None if value in values else f"one of {', '.join(values)}"


def _matching(pattern: str, expected: str) -> Check:
    """Return a check by RE2, since Python's regular expressions need exponential time for some values."""
    return lambda value: None if matcher((f"^(?:{pattern})$",))(value) else expected


def _page_size(value: str) -> str | None:
    fits = value in ("large", "small", "any") or re.fullmatch(r"\d+([kKMGT]i?)?(b|bit|B)?", value)
    return None if fits else "large, small, any or a size"


_NATURAL = _integer(0)
_POSITIVE = _integer(1)
_CPUS = _matching(r"\^?\d+(-\d+)?(,\^?\d+(-\d+)?)*", "a list of CPUs")

_HW: dict[str, Check] = {
    **dict.fromkeys(("boot_menu", "cpu_realtime", "ephemeral_encryption", "hide_hypervisor_id", "locked_memory",
                     "mem_encryption", "pmu", "vif_multiqueue_enabled", "virtio_packed_ring"), _boolean),
    **dict.fromkeys(("cpu_cores", "cpu_sockets", "cpu_threads", "cpu_max_cores", "cpu_max_sockets",
                     "cpu_max_threads", "numa_nodes"), _POSITIVE),
    **dict.fromkeys(("cpu_dedicated_mask", "cpu_realtime_mask"), _CPUS),
    "cpu_policy": _choice("shared", "dedicated", "mixed"),
    "cpu_thread_policy": _choice("prefer", "isolate", "require"),
    "emulator_threads_policy": _choice("share", "isolate"),
    "ephemeral_encryption_format": _choice("plain", "luks", "luksv2"),
    "mem_encryption_model": _choice("amd-sev", "amd-sev-es", "amd-sev-snp", "intel-tdx"),
    "mem_page_size": _page_size,
    "pci_numa_affinity_policy": _choice("required", "preferred", "legacy", "socket"),
    "pmem": _matching(r"[^,]+(,[^,]+)*", "a list of labels"),
    "redirected_usb_ports": _integer(0, 15),
    "serial_port_count": _NATURAL,
    "sound_model": _choice("sb16", "es1370", "pcspk", "ac97", "ich6", "ich9", "usb", "virtio"),
    "tpm_model": _choice("tpm-tis", "tpm-crb"),
    "tpm_version": _choice("1.2", "2.0"),
    "tpm_secret_security": _choice("user", "host", "deployment"),
    "usb_model": _choice("none", "nec-xhci", "qemu-xhci"),
    "viommu_model": _choice("intel", "smmuv3", "virtio", "auto"),
    "watchdog_action": _choice("none", "pause", "poweroff", "reset", "disabled")}
_LEVEL = _choice("custom", "high", "normal", "low")
_QUOTA: dict[str, Check] = {
    **dict.fromkeys((
        "cpu_shares", "cpu_period", "disk_read_bytes_sec", "disk_read_iops_sec", "disk_write_bytes_sec",
        "disk_write_iops_sec", "disk_total_bytes_sec", "disk_total_iops_sec", "vif_inbound_average",
        "vif_inbound_peak", "vif_inbound_burst", "vif_outbound_average", "vif_outbound_peak", "vif_outbound_burst",
    ), _NATURAL),
    "cpu_quota": _integer(),
    **{f"{kind}_{limit}": _NATURAL for kind in ("cpu", "memory", "disk_io", "vif")
       for limit in ("limit", "reservation", "shares_share")},
    **{f"{kind}_shares_level": _LEVEL for kind in ("cpu", "memory", "disk_io", "vif")}}
_CAPABILITIES = (
    "aggregates", "cell_uuid", "cpu_allocation_ratio", "cpu_info", "current_workload", "disk_allocation_ratio",
    "disk_available_least", "disk_mb_used", "failed_builds", "free_disk_gb", "free_disk_mb", "free_ram_mb", "host",
    "host_ip", "hypervisor_hostname", "hypervisor_type", "hypervisor_version", "id", "instances", "limits",
    "local_gb", "local_gb_used", "mapped", "memory_mb", "memory_mb_used", "metrics", "nodename", "num_instances",
    "num_io_ops", "numa_topology", "pci_device_pools", "pci_stats", "ram_allocation_ratio", "running_vms",
    "service_id", "stats", "supported_hv_specs", "supported_instances", "total_usable_disk_gb",
    "total_usable_ram_mb", "updated", "uuid", "vcpus", "vcpus_total", "vcpus_used")

EXACT: dict[str, Check] = {
    **{f"hw:{name}": check for name, check in _HW.items()},
    **{f"quota:{name}": check for name, check in _QUOTA.items()}, "hide_hypervisor_id": _boolean,
    "group_policy": _choice("isolate", "none"), "hw_rng:allowed": _boolean, "hw_rng:rate_bytes": _NATURAL,
    "hw_rng:rate_period": _NATURAL, "hw_video:ram_max_mb": _NATURAL, "os:secure_boot": _choice("disabled", "required"),
    "accel:device_profile": _anything,
    "pci_passthrough:alias": _matching(r"[^:]+:\d+(\s*,\s*[^:]+:\d+)*", "alias:count, ..."),
    "vmware:hw_version": _anything, "vmware:storage_policy": _anything}
PATTERNS: list[tuple[re.Pattern[str], Check]] = [
    (re.compile(r"hw:numa_cpus\.\d+"), _CPUS), (re.compile(r"hw:numa_mem\.\d+"), _POSITIVE),
    (re.compile(r"aggregate_instance_extra_specs:.+"), _anything),
    (re.compile(rf"capabilities:({'|'.join(_CAPABILITIES)})(:.+)?"), _anything)]
