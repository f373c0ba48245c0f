"""What a flavor and an image ask of a host: amounts of resource classes, required and forbidden traits.

Pure functions, used where a request is made (conductor) and where it is checked.
"""

from __future__ import annotations

import logging
import re

from nova import exception
from nova.objects.compute import DISK_GB, MEMORY_MB, VCPU
from nova.objects.flavor import Flavor
from nova.objects.image import Image

LOG = logging.getLogger(__name__)

PCPU = "PCPU"
HYPERTHREADING = "HW_CPU_HYPERTHREADING"

_SUFFIX = r"(?P<suffix>[a-zA-Z0-9_-]{1,64})?"
_RESOURCE = re.compile(rf"^resources{_SUFFIX}:(?P<name>[A-Z0-9_]+)$")
_TRAIT = re.compile(rf"^trait{_SUFFIX}:(?P<name>[A-Z0-9_]+)$")
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})

_SEV_TRAITS = {"amd-sev": "HW_CPU_X86_AMD_SEV", "amd-sev-es": "HW_CPU_X86_AMD_SEV_ES",
               "amd-sev-snp": "HW_CPU_X86_AMD_SEV_SNP", "intel-tdx": "HW_CPU_X86_INTEL_TDX"}


def requested_resources(flavor: Flavor, image: Image | None = None, volume_backed: bool = False,
                        ) -> tuple[dict[str, int], list[str], list[str]]:
    """(resource class -> amount, required traits, forbidden traits) of a server; the traits sorted.

    Granular groups (``resources1:``) count towards the same host: a host offers what its root
    provider has. Raises InvalidInput for an amount or a CPU mask that is not one.
    """
    amounts, required, forbidden = _from_extra_specs(flavor.extra_specs)
    resources = {**_cpus(flavor, image, amounts), MEMORY_MB: flavor.memory_mb, DISK_GB: flavor.disk_gb(volume_backed)}
    for name, label_amount in _devices(flavor, image).items():
        amounts.setdefault(name, label_amount)
    resources.update(amounts)
    required |= _from_image(image) | _features(flavor, image)
    thread_policy = _either(flavor, image, "hw:cpu_thread_policy")
    if thread_policy == "require":
        required.add(HYPERTHREADING)
    elif thread_policy == "isolate":
        forbidden.add(HYPERTHREADING)
    return {name: amount for name, amount in resources.items() if amount}, sorted(required), sorted(forbidden)


def _from_extra_specs(extra_specs: dict[str, str]) -> tuple[dict[str, int], set[str], set[str]]:
    amounts: dict[str, int] = {}
    traits: dict[str, set[str]] = {"required": set(), "forbidden": set()}
    for key, value in extra_specs.items():
        if match := _RESOURCE.match(key):
            if not value.strip().isdecimal():
                raise exception.InvalidInput(reason=f"Extra spec {key} must be a whole number, not '{value}'.")
            amounts[match["name"]] = amounts.get(match["name"], 0) + int(value)
        elif match := _TRAIT.match(key):
            if value in traits:
                traits[value].add(match["name"])
            else:
                LOG.warning("Extra spec %s=%s is ignored: neither required nor forbidden", key, value)
    return amounts, traits["required"], traits["forbidden"]


def _from_image(image: Image | None) -> set[str]:
    """The traits that an image may require (it cannot forbid any)."""
    properties = image.properties if image else {}
    found = ((_TRAIT.match(key), value) for key, value in properties.items())
    return {match["name"] for match, value in found if match and value == "required" and not match["suffix"]}


def _either(flavor: Flavor, image: Image | None, key: str) -> str | None:
    """A property that a flavor (``hw:x``) or else an image (``hw_x``) sets."""
    value = flavor.extra_specs.get(key)
    if value is None and image is not None:
        value = image.properties.get(key.replace(":", "_"))
    return value


def _is_true(value: str | None) -> bool:
    return value is not None and str(value).strip().lower() in _TRUE


# --- CPUs ------------------------------------------------------------------------------------------
def _cpus(flavor: Flavor, image: Image | None, amounts: dict[str, int]) -> dict[str, int]:
    """VCPU and PCPU by the CPU policy; what the extra specs name is theirs to say."""
    if VCPU in amounts or PCPU in amounts:
        return {}
    policy = _either(flavor, image, "hw:cpu_policy")
    overhead = 1 if flavor.extra_specs.get("hw:emulator_threads_policy") == "isolate" else 0
    if policy == "dedicated":
        return {PCPU: flavor.vcpus + overhead}
    if policy == "mixed":
        mask = flavor.extra_specs.get("hw:cpu_dedicated_mask") or _either(flavor, image, "hw:cpu_realtime_mask") or ""
        pinned = len(cpu_mask(mask, flavor.vcpus))
        return {PCPU: pinned + overhead, VCPU: flavor.vcpus - pinned}
    return {VCPU: flavor.vcpus}


def cpu_mask(mask: str, count: int) -> set[int]:
    """The CPUs below ``count`` that a mask like ``0-3,^2`` names (with only ``^``: all others)."""
    parts = [part.strip() for part in mask.split(",") if part.strip()]
    everything = set(range(count))
    named: set[int] = everything if all(part.startswith("^") for part in parts) else set()
    excluded: set[int] = set()
    for part in parts:
        target = excluded if part.startswith("^") else named
        first, _, last = part.removeprefix("^").partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise exception.InvalidInput(reason=f"'{mask}' is not a list of CPUs.")
        # Bounded by the flavor, whatever numbers the mask has.
        target.update(range(int(first), min(int(last or first) + 1, count)))
    return (named - excluded) & everything


# --- features that stand for traits and devices ----------------------------------------------------
def _devices(flavor: Flavor, image: Image | None) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for label in filter(None, flavor.extra_specs.get("hw:pmem", "").split(",")):
        name = "CUSTOM_PMEM_NAMESPACE_" + re.sub(r"[^A-Z0-9_]", "_", label.strip().upper())
        amounts[name] = amounts.get(name, 0) + 1
    if _is_true(_either(flavor, image, "hw:mem_encryption")):
        amounts["MEM_ENCRYPTION_CONTEXT"] = 1
    return amounts


def _features(flavor: Flavor, image: Image | None) -> set[str]:
    """The traits of features that a host must have to run this server at all."""
    traits = _security_features(flavor, image)
    if _is_true(_either(flavor, image, "hw:virtio_packed_ring")):
        traits.add("COMPUTE_NET_VIRTIO_PACKED")
    if _either(flavor, image, "hw:sound_model") == "virtio":
        traits.add("COMPUTE_SOUND_MODEL_VIRTIO")
    if flavor.extra_specs.get("accel:device_profile"):
        traits.add("COMPUTE_ACCELERATORS")
    mode = _either(flavor, image, "hw:maxphysaddr_mode")
    if mode in ("passthrough", "emulate"):
        traits.add("COMPUTE_ADDRESS_SPACE_" + ("PASSTHROUGH" if mode == "passthrough" else "EMULATED"))
    if _is_true(_either(flavor, image, "hw:ephemeral_encryption")):
        traits.add("COMPUTE_EPHEMERAL_ENCRYPTION")
        kind = _either(flavor, image, "hw:ephemeral_encryption_format")
        if kind:
            traits.add(f"COMPUTE_EPHEMERAL_ENCRYPTION_{kind.upper()}")
    return traits


def _security_features(flavor: Flavor, image: Image | None) -> set[str]:
    traits: set[str] = set()
    if _either(flavor, image, "os:secure_boot") == "required":
        traits.add("COMPUTE_SECURITY_UEFI_SECURE_BOOT")
    if _is_true(_either(flavor, image, "hw:firmware_stateless")):
        traits.add("COMPUTE_SECURITY_STATELESS_FIRMWARE")
    version = _either(flavor, image, "hw:tpm_version")
    if version:
        traits.add("COMPUTE_SECURITY_TPM_" + version.replace(".", "_"))
        model = _either(flavor, image, "hw:tpm_model") or "tpm-tis"
        traits.add("COMPUTE_SECURITY_TPM_" + model.removeprefix("tpm-").upper())
        secret = flavor.extra_specs.get("hw:tpm_secret_security", "user")
        traits.add(f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{secret.upper()}")
    if _is_true(_either(flavor, image, "hw:mem_encryption")):
        model = _either(flavor, image, "hw:mem_encryption_model") or "amd-sev"
        traits.add(_SEV_TRAITS.get(model, _SEV_TRAITS["amd-sev"]))
    return traits
