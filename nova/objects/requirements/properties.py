"""The raw wishes of a server: flavor extra specs (``hw:name``) and image properties (``hw_name``), read and checked.

Conflicts between the two are refused when a server is created; here the flavor wins where not said otherwise.
"""

from __future__ import annotations

from collections.abc import Collection

from nova import exception
from nova.objects.instance import Instance

_TRUE = ("1", "t", "true", "on", "y", "yes")
_FALSE = ("0", "f", "false", "off", "n", "no", "")
# Of an image: its guests have an agent; every snapshot of them wants file systems at rest.
AGENT, QUIESCE = "hw_qemu_guest_agent", "os_require_quiesce"


class Properties:
    """The wishes of one server. Unusable values raise InvalidInput naming the property."""

    def __init__(self, instance: Instance) -> None:
        self.vcpus = instance.flavor.vcpus
        self.specs = instance.flavor.extra_specs
        self.image = instance.image.properties if instance.image else {}

    def get(self, name: str) -> str | None:
        """hw:name of the flavor, else hw_name of the image."""
        return self.specs.get(f"hw:{name}", self.image.get(f"hw_{name}"))

    def image_choice(self, name: str, allowed: Collection[str]) -> str | None:
        """A property of the image, one of ``allowed`` (or not set)."""
        return choice(name, self.image.get(name), allowed)

    def choice(self, name: str, allowed: Collection[str]) -> str | None:
        """An hw: wish, one of ``allowed`` (or not set)."""
        return choice(f"hw_{name}", self.get(name), allowed)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean hw: wish."""
        return truth(f"hw_{name}", self.get(name), default)

    def image_flag(self, name: str) -> bool:
        return truth(name, self.image.get(name))

    def spec_number(self, key: str, low: int = 0) -> int | None:
        return number(key, self.specs.get(key), low)

    def image_number(self, key: str, low: int = 0) -> int | None:
        return number(key, self.image.get(key), low)

    def bounded_number(self, name: str, most: str) -> int | None:
        """A number of the image that the flavor's ``most`` bounds."""
        wanted, allowed = self.image_number(name), self.spec_number(most)
        if wanted is not None and allowed is not None and wanted > allowed:
            raise exception.InvalidInput(reason=f"{name}={wanted} is more than the flavor allows ({allowed})")
        return wanted


def choice(key: str, value: str | None, allowed: Collection[str]) -> str | None:
    """``value`` if it is one of ``allowed`` (or not set)."""
    if value is not None and value not in allowed:
        raise exception.InvalidInput(reason=f"{key}={value} is not supported by this hypervisor")
    return value


def number(key: str, value: str | None, low: int = 0) -> int | None:
    if value is None:
        return None
    try:
        found = int(value)
    except ValueError:
        found = low - 1
    if found < low:
        raise exception.InvalidInput(reason=f"{key}={value} is not a number of at least {low}")
    return found


def truth(key: str, value: str | None, default: bool = False) -> bool:
    """A boolean as users write it. Raises InvalidInput."""
    if value is None:
        return default
    if value.strip().lower() in _TRUE:
        return True
    if value.strip().lower() in _FALSE:
        return False
    raise exception.InvalidInput(reason=f"{key}={value} is not a boolean")


def is_unset(value: str | None) -> bool:
    """Whether a wish asks for nothing."""
    return value is None or value.strip().lower() in _FALSE
