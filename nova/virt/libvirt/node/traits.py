"""Traits of a compute node, as os-traits names."""

from __future__ import annotations

from nova.conf import CONF
from nova.objects.requirements.hardware_values import (
    LOCKED_MEMORY,
    USB_REDIRECTION,
    architecture_trait,
    machine_trait,
)
from nova.objects.volumes.share import VIRTIO_FS
from nova.virt.libvirt.node.capabilities import Capabilities
from nova.virt.libvirt.xml import guest_config

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
    "virt-ssbd": "AMD_VIRT_SSBD", "amd-no-ssb": "AMD_NO_SSB",
}
_IMAGE_TYPES = ("AKI", "AMI", "ARI", "ISO", "QCOW2", "RAW", "VDI", "VHD", "VHDX", "VMDK")
_BUSES = ("fdc", "ide", "sata", "scsi", "usb", "virtio")


def of_node(capabilities: Capabilities) -> list[str]:
    """Return the traits of the root provider, sorted."""
    traits = {"COMPUTE_NODE", "OWNER_NOVA", "COMPUTE_NET_VIRTIO_PACKED", "COMPUTE_RESCUE_BFV",
              "COMPUTE_VOLUME_MULTI_ATTACH", LOCKED_MEMORY, *capabilities.model_traits}
    traits |= {f"COMPUTE_IMAGE_TYPE_{name}" for name in _IMAGE_TYPES}
    traits |= {f"COMPUTE_STORAGE_BUS_{bus.upper()}" for bus in capabilities.disk_buses & set(_BUSES)}
    traits |= {f"COMPUTE_GRAPHICS_MODEL_{name.upper()}"
               for name in capabilities.video_models & set(guest_config.VIDEO_MODELS)}
    if capabilities.virtio_fs:
        traits.add(VIRTIO_FS)
    if capabilities.uefi:
        traits.add("COMPUTE_FIRMWARE_UEFI")
    if capabilities.secure_boot:
        traits.add("COMPUTE_SECURITY_UEFI_SECURE_BOOT")
    traits.add(f"HW_ARCH_{capabilities.arch.upper()}")
    offered = {capabilities.arch, *(architecture.name for architecture in capabilities.foreign)}
    traits |= {architecture_trait(name) for name in offered}
    traits |= {machine_trait(machine, arch) for arch, _path, machines in capabilities.emulators if arch in offered
               for machine in machines}
    if "spice" in capabilities.graphics and CONF.spice.enabled:
        traits.add(USB_REDIRECTION)
    if capabilities.arch in guest_config.X86:
        traits.add("COMPUTE_FIRMWARE_BIOS")
    if capabilities.arch == "x86_64":
        traits |= _cpu_traits(capabilities.features)
    if capabilities.cpu_info.get("topology", {}).get("threads", 1) > 1:
        traits.add("HW_CPU_HYPERTHREADING")
    return sorted(traits)


def _cpu_traits(features: frozenset[str]) -> set[str]:
    traits = {f"HW_CPU_X86_{_CPU_FEATURES[name]}" for name in features if name in _CPU_FEATURES}
    if "svm" in features:
        traits.add("HW_CPU_X86_AMD_SVM")
    if "vmx" in features:
        traits.add("HW_CPU_X86_INTEL_VMX")
    return traits
