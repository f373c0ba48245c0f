"""Resources that a flavor and an image request of a host: resource classes, traits, NUMA cells, devices. Pure
functions, used where a request is made (conductor) and where it is checked."""

import dataclasses
import logging
import re
from collections.abc import Iterable
from typing import Any

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import whole
from nova.objects.dedicated_resources import pci
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU
from nova.objects.hosts.scheduling import GroupSpec, RequestGroup, RequestSpec
from nova.objects.images.image import Image
from nova.objects.requirements import disk_buses, guest_numa, hardware
from nova.objects.requirements.guest_numa import either, is_true
from nova.objects.servers.instance import Instance
from nova.objects.volumes.share import VIRTIO_FS

LOG = logging.getLogger(__name__)

PCPU = "PCPU"
MULTIATTACH = "COMPUTE_VOLUME_MULTI_ATTACH"  # trait of a host whose guests may share volumes
HYPERTHREADING = "HW_CPU_HYPERTHREADING"

_SUFFIX = r"(?P<suffix>[a-zA-Z0-9_-]{1,64})?"
_RESOURCE = re.compile(rf"^resources{_SUFFIX}:(?P<name>[A-Z0-9_]+)$")
_TRAIT = re.compile(rf"^trait{_SUFFIX}:(?P<name>[A-Z0-9_]+)$")
_POLICIES = ("none", "isolate")

_SEV_TRAITS = {"amd-sev": "HW_CPU_X86_AMD_SEV", "amd-sev-es": "HW_CPU_X86_AMD_SEV_ES",
               "amd-sev-snp": "HW_CPU_X86_AMD_SEV_SNP", "intel-tdx": "HW_CPU_X86_INTEL_TDX"}


@dataclasses.dataclass(frozen=True)
class Requested:
    """Requested resources. ``resources`` and traits may come from any providers in the host's tree, each of ``groups``
    must come from one provider (a different one for each if ``group_policy`` is isolate). Traits are sorted."""

    resources: dict[str, int]
    required: list[str]
    forbidden: list[str]
    groups: list[RequestGroup]
    group_policy: str

    @property
    def total(self) -> dict[str, int]:
        """Return the amounts claimed in the whole tree, by resource class."""
        total = dict(self.resources)
        for group in self.groups:
            for name, amount in group.resources.items():
                total[name] = total.get(name, 0) + amount
        return total


def request_spec(instance: Instance, flavor: Flavor, group: GroupSpec | None = None, aliases: Iterable[str] = (),
                 **how: Any) -> RequestSpec:
    """Return the request to schedulers for the server with this flavor (``how``: further fields of the request).
    ``aliases``: the option [pci]alias. Raises InvalidInput for requirements that no host can have."""
    existing = instance.launched_at is not None
    if not existing:
        disk_buses.check(instance, flavor, instance.image)
    fields = host_requirements(flavor, instance.image, instance.volume_backed, aliases, existing)
    buses = hardware.disk_traits(device.disk_bus for device in instance.block_devices)
    if buses:
        fields["required_traits"] = sorted({*fields["required_traits"], *buses})
    if any(device.multiattach for device in instance.block_devices):
        fields["required_traits"] = sorted({*fields["required_traits"], MULTIATTACH})
    if instance.shares:
        fields["required_traits"] = sorted({*fields["required_traits"], VIRTIO_FS})
    return RequestSpec(
        instance_uuids=[instance.uuid], project_id=instance.project_id, user_id=instance.user_id,
        availability_zone=instance.pinned_availability_zone, hints=instance.scheduler_hints, group=group,
        **fields, **how)


def check_resize(instance: Instance, flavor: Flavor) -> None:
    """Raise InvalidInput if no host can provide the hardware of the server with this flavor, but could with the current
    one. (A server that an earlier release accepted may have other properties that no host provides.)"""
    def check(flavor: Flavor) -> None:
        disk_buses.check(instance, flavor, instance.image)
        requested_resources(flavor, instance.image, instance.volume_backed)

    try:
        check(flavor)
    except exception.InvalidInput:
        try:
            check(instance.flavor)
        except exception.InvalidInput:
            return
        raise


def host_requirements(flavor: Flavor, image: Image | None = None, volume_backed: bool = False,
                      aliases: Iterable[str] = (), existing: bool = False) -> dict[str, Any]:
    """Return the fields of a request that follow from flavor and image. Raises InvalidInput."""
    requested = requested_resources(flavor, image, volume_backed, existing)
    devices = flavor.extra_specs.get("pci_passthrough:alias", "")
    policy = either(flavor, image, "hw:pci_numa_affinity_policy")
    return {
        "flavor": flavor, "image": image, "resources": requested.resources, "required_traits": requested.required,
        "forbidden_traits": requested.forbidden, "groups": requested.groups, "group_policy": requested.group_policy,
        "numa_topology": guest_numa.guest_topology(flavor, image),
        "pci_requests": pci.requests(devices, policy, pci.parse_aliases(aliases)) if devices else []}


def requests_dedicated_resources(flavor: Flavor, image: Image | None = None) -> bool:
    """Return True if the server needs dedicated NUMA cells or devices."""
    return bool(flavor.extra_specs.get("pci_passthrough:alias")) or guest_numa.guest_topology(flavor, image) is not None


def requested_resources(flavor: Flavor, image: Image | None = None, volume_backed: bool = False,
                        existing: bool = False) -> Requested:
    """Return the resources that a server of this flavor and image requests; ``existing``: it has run before. Raises
    InvalidInput for an invalid amount or CPU mask, for groups without a policy, and for virtual hardware that no host
    can provide."""
    groups = _from_extra_specs(flavor.extra_specs)
    own = groups.pop("", RequestGroup())
    for bare in [group for group in groups.values() if not group.resources]:
        # Traits without a particular provider.
        own.required += bare.required
        own.forbidden += bare.forbidden
    resources = {**_cpus(flavor, image, own.resources), MEMORY_MB: flavor.memory_mb,
                 DISK_GB: flavor.disk_gb(volume_backed)}
    resources.update({**_devices(flavor, image), **own.resources})
    required = {*own.required, *_from_image(image), *_features(flavor, image, existing)}
    forbidden = set(own.forbidden)
    threads = guest_numa.thread_policy(flavor, image)
    if threads == "require":
        required.add(HYPERTHREADING)
    elif threads == "isolate":
        forbidden.add(HYPERTHREADING)
    numbered = [groups[suffix] for suffix in sorted(groups) if any(groups[suffix].resources.values())]
    return Requested({name: amount for name, amount in resources.items() if amount}, sorted(required),
                     sorted(forbidden), numbered, _group_policy(flavor, numbered))


def _group_policy(flavor: Flavor, groups: list[RequestGroup]) -> str:
    policy = flavor.extra_specs.get("group_policy")
    if policy is None and len(groups) < 2:
        return "none"
    if policy not in _POLICIES:
        raise exception.InvalidInput(reason=f"Extra spec group_policy must be one of {', '.join(_POLICIES)}, not "
                                            f"'{policy or ''}': the flavor has {len(groups)} numbered groups.")
    return policy


def _from_extra_specs(extra_specs: dict[str, str]) -> dict[str, RequestGroup]:
    """Return suffix -> requests of resources<suffix>: and trait<suffix>:; "" is the un-numbered group."""
    groups: dict[str, RequestGroup] = {}
    for key, value in extra_specs.items():
        if match := _RESOURCE.match(key):
            amount = whole(value.strip())
            if amount is None:
                raise exception.InvalidInput(reason=f"Extra spec {key} must be a whole number, not '{value}'.")
            group = groups.setdefault(match["suffix"] or "", RequestGroup())
            group.resources[match["name"]] = amount
        elif match := _TRAIT.match(key):
            group = groups.setdefault(match["suffix"] or "", RequestGroup())
            if value in ("required", "forbidden"):
                getattr(group, value).append(match["name"])
            else:
                LOG.warning("Extra spec %s=%s is ignored: its value must be required or forbidden", key, value)
    return groups


def _from_image(image: Image | None) -> set[str]:
    """Return the traits that an image requires (it cannot forbid any)."""
    properties = image.properties if image else {}
    matches = ((_TRAIT.match(key), value) for key, value in properties.items())
    return {match["name"] for match, value in matches if match and value == "required" and not match["suffix"]}


# --- CPUs ------------------------------------------------------------------------------------------
def _cpus(flavor: Flavor, image: Image | None, amounts: dict[str, int]) -> dict[str, int]:
    """Return VCPU and PCPU by the CPU policy, without resource classes that extra specs set."""
    policy = guest_numa.cpu_policy(flavor, image)
    if VCPU in amounts or PCPU in amounts:
        return {}
    overhead = 1 if flavor.extra_specs.get("hw:emulator_threads_policy") == "isolate" else 0
    if policy == guest_numa.DEDICATED:
        return {PCPU: flavor.vcpus + overhead}
    if policy == guest_numa.MIXED:
        pinned = len(guest_numa.pinned_cpus(flavor, image))
        return {PCPU: pinned + overhead, VCPU: flavor.vcpus - pinned}
    return {VCPU: flavor.vcpus}


# --- features that stand for traits and devices ----------------------------------------------------
def _devices(flavor: Flavor, image: Image | None) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for label in filter(None, flavor.extra_specs.get("hw:pmem", "").split(",")):
        name = "CUSTOM_PMEM_NAMESPACE_" + re.sub(r"[^A-Z0-9_]", "_", label.strip().upper())
        amounts[name] = amounts.get(name, 0) + 1
    if is_true(either(flavor, image, "hw:mem_encryption")):
        amounts["MEM_ENCRYPTION_CONTEXT"] = 1
    return amounts


def _features(flavor: Flavor, image: Image | None, existing: bool) -> set[str]:
    """Return the traits of features that a host must have to run this server."""
    traits = _security_features(flavor, image) | hardware.required_traits(flavor, image, existing)
    if is_true(either(flavor, image, "hw:virtio_packed_ring")):
        traits.add("COMPUTE_NET_VIRTIO_PACKED")
    if flavor.extra_specs.get("accel:device_profile"):
        traits.add("COMPUTE_ACCELERATORS")
    mode = either(flavor, image, "hw:maxphysaddr_mode")
    if mode in ("passthrough", "emulate"):
        traits.add("COMPUTE_ADDRESS_SPACE_" + ("PASSTHROUGH" if mode == "passthrough" else "EMULATED"))
    if is_true(either(flavor, image, "hw:ephemeral_encryption")):
        traits.add("COMPUTE_EPHEMERAL_ENCRYPTION")
        kind = either(flavor, image, "hw:ephemeral_encryption_format")
        if kind:
            traits.add(f"COMPUTE_EPHEMERAL_ENCRYPTION_{kind.upper()}")
    return traits


def _security_features(flavor: Flavor, image: Image | None) -> set[str]:
    traits: set[str] = set()
    if either(flavor, image, "os:secure_boot") == "required":
        traits.add("COMPUTE_SECURITY_UEFI_SECURE_BOOT")
    if is_true(either(flavor, image, "hw:firmware_stateless")):
        traits.add("COMPUTE_SECURITY_STATELESS_FIRMWARE")
    version = either(flavor, image, "hw:tpm_version")
    if version:
        traits.add("COMPUTE_SECURITY_TPM_" + version.replace(".", "_"))
        model = either(flavor, image, "hw:tpm_model") or "tpm-tis"
        traits.add("COMPUTE_SECURITY_TPM_" + model.removeprefix("tpm-").upper())
        secret = flavor.extra_specs.get("hw:tpm_secret_security", "user")
        traits.add(f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{secret.upper()}")
    if is_true(either(flavor, image, "hw:mem_encryption")):
        model = either(flavor, image, "hw:mem_encryption_model") or "amd-sev"
        traits.add(_SEV_TRAITS.get(model, _SEV_TRAITS["amd-sev"]))
    return traits
