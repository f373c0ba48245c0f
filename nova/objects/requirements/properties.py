"""The raw hardware requests of a server: flavor extra specs (``hw:name``) and image properties (``hw_name``), parsed.
Conflicts between them are refused when a server is created; here the flavor takes precedence, except where stated."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.images.image import Image
from nova.objects.servers.instance import Instance

_TRUE = ("1", "t", "true", "on", "y", "yes")
_FALSE = ("0", "f", "false", "off", "n", "no", "")
# Properties of an image: guests have an agent; snapshots require quiesced file systems.
AGENT, QUIESCE = "hw_qemu_guest_agent", "os_require_quiesce"
_LEGACY_NAMES = {
    "architecture": "hw_architecture", "vm_mode": "hw_vm_mode", "hypervisor_type": "img_hv_type",
    "hypervisor_version_requires": "img_hv_requested_version",
}
_LEGACY_ARCHITECTURES = {
    "amd64": "x86_64", "x64": "x86_64", "i386": "i686", "i486": "i686", "i586": "i686", "x86": "i686",
    "arm64": "aarch64", "ppc64el": "ppc64le", "powerpc": "ppc", "powerpc64": "ppc64",
}


def canonical_architecture(name: str) -> str:
    """Return the name that hypervisors use for an architecture."""
    lower = name.strip().lower()
    return _LEGACY_ARCHITECTURES.get(lower, lower)


def with_current_names(properties: Mapping[str, object]) -> dict[str, str]:
    """Return the image properties under their current names, which take precedence over legacy names."""
    renamed = {_LEGACY_NAMES[name]: str(value) for name, value in properties.items() if name in _LEGACY_NAMES}
    return renamed | {name: str(value) for name, value in properties.items() if name not in _LEGACY_NAMES}


class Properties:
    """The hardware requests of one server. Unusable values raise InvalidInput naming the property."""

    def __init__(self, flavor: Flavor, image: Image | None) -> None:
        self.vcpus, self.memory_mb = flavor.vcpus, flavor.memory_mb
        self.specs = flavor.extra_specs
        self.image = with_current_names(image.properties) if image else {}
        self.disk_format = image.disk_format if image else None

    @classmethod
    def of(cls, instance: Instance) -> Properties:
        return cls(instance.flavor, instance.image)

    def get(self, name: str) -> str | None:
        """Return the value of hw:name of the flavor, else of hw_name of the image."""
        return self.specs.get(f"hw:{name}", self.image.get(f"hw_{name}"))

    def key(self, name: str) -> str:
        """Return the name under which :meth:`get` finds a value: hw:name of the flavor, else hw_name of the image."""
        return f"hw:{name}" if f"hw:{name}" in self.specs else f"hw_{name}"

    def choice(self, name: str, allowed: Collection[str]) -> str | None:
        """Return an hw: property, one of ``allowed`` or None."""
        return choice(self.key(name), self.get(name), allowed)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean hw: property."""
        return truth(self.key(name), self.get(name), default)

    def image_flag(self, name: str) -> bool:
        return truth(name, self.image.get(name))

    def spec_number(self, key: str, low: int = 0) -> int | None:
        return number(key, self.specs.get(key), low)

    def image_number(self, key: str, low: int = 0) -> int | None:
        return number(key, self.image.get(key), low)

    def bounded_number(self, name: str, most: str) -> int | None:
        """Return a number of the image, limited by the flavor's ``most``."""
        wanted, allowed = self.image_number(name), self.spec_number(most)
        if wanted is not None and allowed is not None and wanted > allowed:
            raise exception.InvalidInput(reason=f"{name}={wanted} is more than the flavor allows ({allowed})")
        return wanted


def tpm_secret_security(flavor: Flavor, image: Image | None) -> str:
    """Return the policy for the secret of the server's virtual TPM: user, host or deployment; "" without a TPM."""
    return flavor.extra_specs.get("hw:tpm_secret_security", "user") if Properties(flavor, image).get(
        "tpm_version") else ""


def choice(key: str, value: str | None, allowed: Collection[str]) -> str | None:
    """Return ``value``, which must be one of ``allowed`` or None. Raises InvalidInput."""
    if value is not None and value not in allowed:
        raise exception.InvalidInput(reason=f"{key}={value} is not supported by this hypervisor")
    return value


def number(key: str, value: str | None, low: int = 0) -> int | None:
    if value is None:
        return None
    try:
        parsed = int(value)
    except ValueError:
        parsed = low - 1
    if parsed < low:
        raise exception.InvalidInput(reason=f"{key}={value} is not a number of at least {low}")
    return parsed


def truth(key: str, value: str | None, default: bool = False) -> bool:
    """Parse a boolean as users write it. Raises InvalidInput."""
    if value is None:
        return default
    if value.strip().lower() in _TRUE:
        return True
    if value.strip().lower() in _FALSE:
        return False
    raise exception.InvalidInput(reason=f"{key}={value} is not a boolean")


def is_unset(value: str | None) -> bool:
    """Return True if a property is absent, empty or false."""
    return value is None or value.strip().lower() in _FALSE
