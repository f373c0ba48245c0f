"""Images, and checks that an image fits a flavor."""

from nova import exception
from nova.objects.accounts.flavor import Flavor, disk_too_small
from nova.objects.base import Object

_GIB = 1024**3
METADATA = "image_"  # prefix of image properties in system_metadata

# Image property that overrides [DEFAULT]shutdown_timeout, and its maximum in seconds, below the deadline of a host step
# (one hour).
_SHUTDOWN, _MOST_SECONDS = "os_shutdown_timeout", 3300

# Greatest overhead of a file format: 16 MiB of headers, and a byte of tables for each 512 bytes of data (qcow2).
_HEADERS, _PIECE = 16 << 20, 512


def least_disk(disk_format: str | None, size: int) -> int:
    """Return a lower bound, in bytes, of the size of the disk in an image file of ``size`` bytes."""
    if disk_format in ("raw", "iso", None, "ami", "aki", "ari"):
        return size
    return max(0, size - _HEADERS) * _PIECE // (_PIECE + 1)


class Image(Object, kw_only=True):
    """An image. ``min_disk`` in GiB, ``min_ram`` in MiB, ``size`` in bytes (None: unknown). ``members``: other projects
    that may use a ``shared`` image. ``properties``: additional properties as strings (hw_*, os_*, kernel_id, ...).
    ``certificate`` (PEM): certificate that must have signed the data; "": no signature needed."""

    id: str
    name: str | None = None
    status: str = "active"
    size: int | None = None
    disk_format: str | None = None
    container_format: str | None = None
    min_disk: int = 0
    min_ram: int = 0
    owner: str | None = None
    visibility: str = "private"
    members: list[str] = []
    protected: bool = False
    checksum: str | None = None
    virtual_size: int | None = None
    properties: dict[str, str] = {}
    certificate: str = ""
    created_at: str | None = None
    updated_at: str | None = None


def metadata_of(image: Image | None) -> dict[str, str]:
    """Return the system_metadata items for the properties of the image of a server."""
    return {f"{METADATA}{name}": value for name, value in image.properties.items()} if image else {}


def shutdown_timeout_of(image: Image | None) -> int | None:
    """Return the seconds that guests of the image get to shut down by themselves (os_shutdown_timeout), None if unset.
    At most ``_MOST_SECONDS``. Raises InvalidInput for a value that is not a number of at least 0."""
    value = image.properties.get(_SHUTDOWN) if image is not None else None
    if value is None:
        return None
    if not value.isascii() or not value.isdigit():
        raise exception.InvalidInput(f"Image property {_SHUTDOWN}={value} is not a number of seconds of at least 0.")
    return min(int(value[:20]), _MOST_SECONDS)


def check_image_fits(flavor: Flavor, image: Image | None, volume_backed: bool) -> None:
    """Check that the image fits the flavor. Raises FlavorMemoryTooSmall, FlavorDiskTooSmall, InvalidInput (an invalid
    property)."""
    if image is None:
        return
    shutdown_timeout_of(image)
    if image.min_ram > flavor.memory_mb:
        raise exception.FlavorMemoryTooSmall()
    if volume_backed or flavor.root_gb == 0:
        return
    if image.min_disk > flavor.root_gb:
        raise exception.FlavorDiskTooSmall(
            f"Flavor's disk is smaller than the minimum size specified in image metadata. Flavor disk is "
            f"{flavor.root_gb * _GIB} bytes, minimum size is {image.min_disk * _GIB} bytes.")
    size = max(image.virtual_size or 0, least_disk(image.disk_format, image.size or 0))
    if size > flavor.root_gb * _GIB:
        raise disk_too_small(flavor.root_gb * _GIB, size)
