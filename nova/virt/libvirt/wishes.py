"""What a server's flavor and image wish of its virtual hardware, read and checked.

A wish is ``hw:name`` in the flavor's extra specs or ``hw_name`` in the image's properties. Conflicts
between the two are refused when a server is created; here the flavor wins where not said otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from nova import exception
from nova.objects.instance import Instance

_TRUE = ("1", "t", "true", "on", "y", "yes")
_FALSE = ("0", "f", "false", "off", "n", "no", "")


class Wishes:
    """The wishes of one server. Unusable values raise InvalidInput naming the property."""

    def __init__(self, instance: Instance) -> None:
        self.vcpus = instance.flavor.vcpus
        self.specs = instance.flavor.extra_specs
        self.properties = instance.image.properties if instance.image else {}
        self.iso = instance.image is not None and instance.image.disk_format == "iso"

    def get(self, name: str) -> str | None:
        """hw:name of the flavor, else hw_name of the image."""
        return self.specs.get(f"hw:{name}", self.image(f"hw_{name}"))

    def image(self, name: str) -> str | None:
        return self.properties.get(name)

    def choice(self, key: str, value: str | None, allowed: Collection[str]) -> str | None:
        """``value`` if it is one of ``allowed`` (or not set)."""
        if value is not None and value not in allowed:
            raise exception.InvalidInput(reason=f"{key}={value} is not supported by this hypervisor")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean hw: wish."""
        return truth(f"hw_{name}", self.get(name), default)

    def number(self, key: str, value: str | None, low: int = 0) -> int | None:
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if number < low:
            raise exception.InvalidInput(reason=f"{key}={value} is not a number of at least {low}")
        return number

    def spec_number(self, key: str, low: int = 0) -> int | None:
        return self.number(key, self.specs.get(key), low)

    def image_number(self, key: str, low: int = 0) -> int | None:
        return self.number(key, self.properties.get(key), low)


def truth(key: str, value: str | None, default: bool = False) -> bool:
    """A boolean as users write it. Raises InvalidInput."""
    if value is None:
        return default
    if value.strip().lower() in _TRUE:
        return True
    if value.strip().lower() in _FALSE:
        return False
    raise exception.InvalidInput(reason=f"{key}={value} is not a boolean")


# Wishes that promise a property of the host which this driver cannot give: refused, never ignored.
_REFUSED_SPECS = ("hw:pmem", "hw:tpm_version", "hw:viommu_model", "hw:cpu_realtime", "hw:numa_nodes",
                  "hw:locked_memory", "hw:mem_encryption", "hw:ephemeral_encryption", "hw:cpu_dedicated_mask",
                  "hw:emulator_threads_policy", "hw:maxphysaddr_mode", "pci_passthrough:alias",
                  "accel:device_profile")
_REFUSED_PROPERTIES = ("hw_tpm_version", "hw_viommu_model", "hw_numa_nodes", "hw_locked_memory",
                       "hw_mem_encryption", "hw_ephemeral_encryption", "hw_firmware_stateless",
                       "hw_maxphysaddr_mode")


def check(instance: Instance) -> None:
    """Raises InvalidInput when the server wishes what this driver cannot give."""
    for key, value in _refused(instance):
        raise exception.InvalidInput(reason=f"{key}={value} is not supported by this hypervisor")


def _refused(instance: Instance) -> Iterator[tuple[str, str]]:
    wishes = Wishes(instance)
    for source, keys in ((wishes.specs, _REFUSED_SPECS), (wishes.properties, _REFUSED_PROPERTIES)):
        for key in keys:
            value = source.get(key)
            if value is not None and value.strip().lower() not in _FALSE:
                yield key, value
    policy = wishes.get("cpu_policy")
    if policy not in (None, "shared"):
        yield "hw:cpu_policy", str(policy)
    size = wishes.get("mem_page_size")
    if size not in (None, "small", "any"):
        yield "hw:mem_page_size", str(size)
