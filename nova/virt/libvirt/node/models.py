"""The device models and features of this host's QEMU and kernel, as they report them themselves."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Mapping

from nova.objects.requirements.hardware_values import BANDWIDTH_LIMITS, CHOICES

LOG = logging.getLogger(__name__)

# Property -> values -> QEMU devices of which a guest needs one.
_VIRTIO_NETWORK = ("virtio-net-pci", "virtio-net-ccw")
_DEVICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "hw_vif_model": {"virtio": _VIRTIO_NETWORK, **{name: (name,) for name in (
        "e1000", "e1000e", "rtl8139", "ne2k_pci", "pcnet", "vmxnet3", "igb")}},
    "hw_scsi_model": {"lsilogic": ("lsi53c895a", "lsi"), "lsisas1068": ("mptsas1068",), "lsisas1078": ("megasas",),
                      "vmpvscsi": ("pvscsi",), "ibmvscsi": ("spapr-vscsi",)},
    "hw_sound_model": {"ac97": ("AC97",), "es1370": ("ES1370",), "ich6": ("intel-hda",), "ich9": ("ich9-intel-hda",),
                       "sb16": ("sb16",), "usb": ("usb-audio",), "pcspk": ("-soundhw",),
                       "virtio": ("virtio-sound-pci",)},
    "hw_usb_model": {"nec-xhci": ("nec-usb-xhci",), "qemu-xhci": ("qemu-xhci",)},
    "hw_viommu_model": {"intel": ("intel-iommu",), "virtio": ("virtio-iommu-pci",)},
    "hw_input_bus": {"virtio": ("virtio-tablet-pci",)},
}
# First libvirt version that supports the XML of a model.
_LIBVIRT_SINCE = {"COMPUTE_SOUND_MODEL_VIRTIO": 10_004_000, "COMPUTE_VIOMMU_MODEL_VIRTIO": 8_003_000}

# Script that limits the rates of an interface as libvirt does, for a test in a network namespace.
_LIMITS = """set -e
tc qdisc add dev lo root handle 1: htb default 1
tc class add dev lo parent 1: classid 1:1 htb rate 8kbps ceil 8kbps
tc qdisc add dev lo parent 1:1 handle 2: sfq perturb 10
tc filter add dev lo parent 1:0 protocol all prio 1 handle 1 fw flowid 1
tc qdisc add dev lo ingress
tc filter add dev lo parent ffff: protocol all u32 match u32 0 0 police rate 8kbps burst 8kb mtu 64kb drop flowid :1
"""


def devices_of(emulator: str) -> frozenset[str] | None:
    """Return the names of all devices of a QEMU, and -soundhw if it has that option; None if it cannot be run here."""
    try:
        devices = _output(emulator, "-device", "help")
        options = _output(emulator, "-help")
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("Cannot run %s to list its devices: %s. All usual device models count as present", emulator, error)
        return None
    names = set(re.findall(r'^name "([^"]+)"', devices, re.MULTILINE))
    return frozenset(names | ({"-soundhw"} if re.search(r"^-soundhw\b", options, re.MULTILINE) else set()))


def traits_of(devices: frozenset[str] | None, libvirt_version: int, architecture: str) -> set[str]:
    """Return the traits of the device models of a QEMU with these devices. None: the devices are unknown; devices of
    every QEMU of recent years count as present."""
    traits: set[str] = set()
    for choice in CHOICES:
        for value, names in _DEVICES.get(choice.name, {}).items():
            trait = choice.trait_of(value)
            usual = devices is None and value not in ("pcspk", "ibmvscsi", "igb", "virtio")
            if trait and (usual or not set(names).isdisjoint(devices or ())):
                traits.add(trait)
    if devices is None:
        traits.add("COMPUTE_NET_VIF_MODEL_VIRTIO")
    traits -= {trait for trait, version in _LIBVIRT_SINCE.items() if libvirt_version < version}
    prefix = "COMPUTE_VIOMMU_MODEL_"
    if architecture == "aarch64":
        traits = (traits - {f"{prefix}INTEL"}) | {f"{prefix}SMMUV3", f"{prefix}AUTO"}
    elif f"{prefix}INTEL" in traits:
        traits.add(f"{prefix}AUTO")
    return traits


def network_traits() -> set[str]:
    """Return the trait of hosts whose kernel limits the rates of interfaces, if this one does."""
    return {BANDWIDTH_LIMITS} if _limits_rates() else set()


def _limits_rates() -> bool:
    try:
        done = subprocess.run(["unshare", "--net", "sh", "-c", _LIMITS], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("Cannot check whether the kernel limits the rates of interfaces: %s", error)
        return False
    if done.returncode:
        LOG.info("The kernel does not limit the rates of interfaces (quota:vif_*): %s", done.stderr.strip())
    return done.returncode == 0


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
