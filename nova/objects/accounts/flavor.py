"""A flavor: the size of a server."""

import datetime
import math

from nova import exception
from nova.objects.base import Object


class Flavor(Object, kw_only=True):
    """A flavor. ``memory_mb`` and ``swap`` in MiB, disks in GiB. Each instance contains a copy of its flavor."""

    id: int = 0
    flavorid: str
    name: str
    memory_mb: int
    vcpus: int
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap: int = 0
    rxtx_factor: float = 1.0
    is_public: bool = True
    disabled: bool = False
    description: str | None = None
    extra_specs: dict[str, str] = {}
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None

    def disk_gb(self, volume_backed: bool = False) -> int:
        """Return the amount of DISK_GB that a server of this flavor claims."""
        root = 0 if volume_backed else self.root_gb
        return root + self.ephemeral_gb + math.ceil(self.swap / 1024)


class FlavorQuery(Object, kw_only=True):
    """Query for a list of flavors. ``is_public`` None: all flavors (administrators only)."""

    project_id: str | None = None
    is_public: bool | None = True
    min_ram: int = 0
    min_disk: int = 0
    name: str | None = None
    sort_key: str = "flavorid"
    sort_dir: str = "asc"
    limit: int | None = None
    marker: str | None = None


def disk_too_small(disk: int, image: int) -> exception.FlavorDiskTooSmall:
    """Return the error for a flavor whose root disk is smaller than an image, both in bytes."""
    return exception.FlavorDiskTooSmall(
        f"Flavor's disk is too small for requested image. Flavor disk is {disk} bytes, image is {image} bytes.")
