"""The report of the compute node: inventories, ratios, reservations, traits, host information.

Traits have names of os-traits. Some depend on the device models of QEMU and on features of the host's kernel."""

import logging
import re
import shutil
import subprocess
from collections.abc import Mapping

import libvirt

from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode
from nova.objects.requirements import hardware_values
from nova.objects.requirements.requested_resources import PCPU
from nova.objects.volumes.share import VIRTIO_FS
from nova.virt import host_report
from nova.virt.driver import HostCpu
from nova.virt.libvirt.files import disks
from nova.virt.libvirt.node.capabilities import Capabilities, pci_devices
from nova.virt.libvirt.xml import guest_platforms

LOG = logging.getLogger(__name__)

_GIB = 1 << 30


def take(connection: libvirt.virConnect, host: str, capabilities: Capabilities) -> ComputeNode:
    """Return the report of the node with current values."""
    _arch, memory, cpus, *_rest = connection.getInfo()
    name = host_report.node_name(host, connection.getHostname())
    identity = host_report.node_uuid(host, name)
    usage = shutil.disk_usage(CONF.instances_path)
    shared, dedicated = cpus, 0
    if capabilities.cells is not None and (CONF.compute.cpu_shared_set or CONF.compute.cpu_dedicated_set):
        cells = capabilities.cells.cells
        shared, dedicated = sum(len(cell.cpus) for cell in cells), sum(len(cell.pcpus) for cell in cells)
    inventories = host_report.inventories(shared, memory, usage.total)
    inventories[PCPU] = host_report.inventory(dedicated, 0, 1.0, 1.0)
    return ComputeNode(
        uuid=identity, host=host, hypervisor_hostname=name, hypervisor_type=connection.getType(),
        hypervisor_version=connection.getVersion(), host_ip=CONF.my_ip, cpu_info=capabilities.cpu_info,
        supported_instances=_supported(capabilities), uptime=host_report.uptime(),
        numa_topology=capabilities.cells, pci_devices=pci_devices(connection),
        disk_available_least=(usage.free - disks.promised_bytes()) // _GIB,
        provider=host_report.provider(
            identity, name, inventories, traits_of_containers(capabilities) if CONF.libvirt.virt_type == "lxc" else
            traits_of_node(capabilities)))


def _supported(capabilities: Capabilities) -> list[tuple[str, str, str]]:
    """Return the guest types (architecture, hypervisor, mode) of this host; KVM only if the driver uses KVM."""
    offered = {capabilities.arch, *(architecture.name for architecture in capabilities.foreign)}
    kinds = {"kvm", "qemu"} if CONF.libvirt.virt_type == "kvm" else {CONF.libvirt.virt_type}
    return [triple for triple in capabilities.guests if triple[0] in offered and triple[1] in kinds]


def cpu(connection: libvirt.virConnect) -> HostCpu:
    """Return the host's CPU frequency and CPU times. A time that the host does not report is 0."""
    times = connection.getCPUStats(libvirt.VIR_NODE_CPU_STATS_ALL_CPUS)
    return HostCpu(frequency=connection.getInfo()[3], **{kind: times.get(kind, 0) for kind in (
        "user", "kernel", "idle", "iowait")})


# --- traits --------------------------------------------------------------------------------------------
# CPU feature in libvirt -> trait.
_CPU_FEATURES = {
    "3dnow": "3DNOW", "abm": "ABM", "aes": "AESNI", "svm": "SVM", "vmx": "VMX", "avx": "AVX", "avx2": "AVX2",
    "avx512bitalg": "AVX512BITALG", "avx512-bitalg": "AVX512BITALG", "avx512bw": "AVX512BW", "avx512cd": "AVX512CD",
    "avx512dq": "AVX512DQ", "avx512er": "AVX512ER", "avx512f": "AVX512F", "gfni": "AVX512GFNI",
    "avx512ifma": "AVX512IFMA", "avx512pf": "AVX512PF", "vaes": "AVX512VAES", "avx512vbmi": "AVX512VBMI",
    "avx512vbmi2": "AVX512VBMI2", "avx512vl": "AVX512VL", "avx512vnni": "AVX512VNNI",
    "vpclmulqdq": "AVX512VPCLMULQDQ", "avx512-vpopcntdq": "AVX512VPOPCNTDQ", "amx-bf16": "AMXBF16",
    "amx-int8": "AMXINT8", "amx-tile": "AMXTILE", "bmi1": "BMI", "bmi2": "BMI2", "pclmuldq": "CLMUL",
    "pclmulqdq": "CLMUL", "f16c": "F16C", "fma": "FMA3", "fma4": "FMA4", "mmx": "MMX", "mpx": "MPX",
    "pdpe1gb": "PDPE1GB", "sgx": "SGX", "sha-ni": "SHA", "sse": "SSE", "sse2": "SSE2", "pni": "SSE3", "sse3": "SSE3",
    "sse4.1": "SSE41", "sse4.2": "SSE42", "sse4a": "SSE4A", "ssse3": "SSSE3", "stibp": "STIBP", "tbm": "TBM",
    "hle": "TSX", "rtm": "TSX", "xop": "XOP", "pcid": "INTEL_PCID", "spec-ctrl": "INTEL_SPEC_CTRL",
    "ssbd": "INTEL_SSBD", "md-clear": "INTEL_MD_CLEAR", "ibpb": "AMD_IBPB", "amd-ssbd": "AMD_SSBD",
    "virt-ssbd": "AMD_VIRT_SSBD", "amd-no-ssb": "AMD_NO_SSB"}
_IMAGE_TYPES = ("AKI", "AMI", "ARI", "ISO", "QCOW2", "RAW", "VDI", "VHD", "VHDX", "VMDK")
_BUSES = ("fdc", "ide", "sata", "scsi", "usb", "virtio")


def traits_of_node(capabilities: Capabilities) -> list[str]:
    """Return the traits of the root provider, sorted."""
    traits = {"COMPUTE_NODE", "OWNER_NOVA", "COMPUTE_NET_VIRTIO_PACKED", "COMPUTE_RESCUE_BFV",
              "COMPUTE_VOLUME_MULTI_ATTACH", hardware_values.LOCKED_MEMORY, *capabilities.model_traits}
    traits |= {f"COMPUTE_IMAGE_TYPE_{name}" for name in _IMAGE_TYPES}
    traits |= {f"COMPUTE_STORAGE_BUS_{bus.upper()}" for bus in capabilities.disk_buses & set(_BUSES)}
    traits |= {f"COMPUTE_GRAPHICS_MODEL_{name.upper()}"
               for name in capabilities.video_models & set(guest_platforms.VIDEO_MODELS)}
    traits.add(f"HW_ARCH_{capabilities.arch.upper()}")
    offered = {capabilities.arch, *(architecture.name for architecture in capabilities.foreign)}
    traits |= {hardware_values.architecture_trait(name) for name in offered}
    traits |= {hardware_values.machine_trait(machine, arch) for arch, _path, machines in capabilities.emulators
               if arch in offered for machine in machines}
    traits |= {hardware_values.machine_trait(machine) for machine in capabilities.machines - {"pc", "q35"}}
    policies = {f"SECRET_SECURITY_{name}" for name in CONF.libvirt.supported_tpm_secret_security if capabilities.tpm}
    traits |= {f"COMPUTE_SECURITY_TPM_{name.removeprefix('tpm-').replace('.', '_').upper()}"
               for name in capabilities.tpm | policies}
    features = capabilities.features if capabilities.arch == "x86_64" else frozenset()
    traits |= {f"HW_CPU_X86_{_CPU_FEATURES[name]}" for name in features if name in _CPU_FEATURES}
    traits |= {trait for applies, trait in (
        (capabilities.virtio_fs, VIRTIO_FS), (capabilities.uefi, "COMPUTE_FIRMWARE_UEFI"),
        (capabilities.secure_boot, "COMPUTE_SECURITY_UEFI_SECURE_BOOT"),
        ("spice" in capabilities.graphics and CONF.spice.enabled, hardware_values.USB_REDIRECTION),
        (capabilities.arch in guest_platforms.X86, "COMPUTE_FIRMWARE_BIOS"),
        ("svm" in features, "HW_CPU_X86_AMD_SVM"), ("vmx" in features, "HW_CPU_X86_INTEL_VMX"),
        (capabilities.cpu_info.get("topology", {}).get("threads", 1) > 1, "HW_CPU_HYPERTHREADING")) if applies}
    return sorted(traits)


def traits_of_containers(capabilities: Capabilities) -> list[str]:
    """Return the traits of the root provider of a host whose guests are containers, sorted."""
    return sorted({"COMPUTE_NODE", "OWNER_NOVA", *(f"COMPUTE_IMAGE_TYPE_{name}" for name in _IMAGE_TYPES if
                                                   name != "ISO"), f"HW_ARCH_{capabilities.arch.upper()}",
                   hardware_values.architecture_trait(capabilities.arch), *capabilities.model_traits})


# Image property -> value -> QEMU devices. The host supports the value if its QEMU has one of these devices.
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
    "hw_input_bus": {"virtio": ("virtio-tablet-pci",)}}
# Trait of a device model -> first libvirt version that can define the model.
_LIBVIRT_SINCE = {"COMPUTE_SOUND_MODEL_VIRTIO": 10_004_000, "COMPUTE_VIOMMU_MODEL_VIRTIO": 8_003_000}

# Script that limits the rates of an interface with the same commands as libvirt, to test the kernel in a namespace.
_LIMITS = """set -e
tc qdisc add dev lo root handle 1: htb default 1
tc class add dev lo parent 1: classid 1:1 htb rate 8kbps ceil 8kbps
tc qdisc add dev lo parent 1:1 handle 2: sfq perturb 10
tc filter add dev lo parent 1:0 protocol all prio 1 handle 1 fw flowid 1
tc qdisc add dev lo ingress
tc filter add dev lo parent ffff: protocol all u32 match u32 0 0 police rate 8kbps burst 8kb mtu 64kb drop flowid :1
"""


def devices_of(emulator: str) -> frozenset[str] | None:
    """Return the names of all devices of a QEMU, and "-soundhw" if QEMU has that option; None if it cannot be run."""
    try:
        devices = _output(emulator, "-device", "help")
        options = _output(emulator, "-help")
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("Cannot list the devices of %s, assuming those of every recent QEMU: %s", emulator, error)
        return None
    names = set(re.findall(r'^name "([^"]+)"', devices, re.MULTILINE))
    return frozenset(names | ({"-soundhw"} if re.search(r"^-soundhw\b", options, re.MULTILINE) else set()))


def traits_of_devices(devices: frozenset[str] | None, libvirt_version: int, architecture: str) -> set[str]:
    """Return the traits of the device models that a QEMU with these ``devices`` supports. If ``devices`` is None
    (unknown), assume the devices that every recent QEMU has."""
    traits: set[str] = set()
    for choice in hardware_values.CHOICES:
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
    """Return the trait for rate limits of interfaces, if the kernel of this host supports them."""
    try:
        done = subprocess.run(["unshare", "--net", "sh", "-c", _LIMITS], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("Cannot check if the kernel can limit rates of interfaces, not offering quota:vif_*: %s", error)
        return set()
    if done.returncode:
        LOG.info("The kernel cannot limit rates of interfaces, not offering quota:vif_*: %s", done.stderr.strip())
        return set()
    return {hardware_values.BANDWIDTH_LIMITS}


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
