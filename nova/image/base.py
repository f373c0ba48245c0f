"""The interface of an image back end.

Used by the API (show, list), conductors (create, delete) and computes (download, upload)."""

import abc
from collections.abc import Callable, Collection, Mapping

from nova import exception
from nova.context import RequestContext
from nova.objects.images.image import Image

# Called with the size of an image in bytes; raises an exception if the image is too large.
CheckSize = Callable[[int], None]


def check_property_count(properties: Collection[str], maximum: int) -> None:
    """Raise QuotaLimit if there are more properties than ``maximum`` (-1: unlimited)."""
    if 0 <= maximum < len(properties):
        raise exception.QuotaLimit("Image metadata limit exceeded")


class ImageStore(abc.ABC):
    """An image back end. All methods raise ImageNotFound, ImageNotAuthorized, ImageBackendUnavailable. ``token``: the
    Keystone token of a user; an image that the user may not read is not found. Without a token the service's own
    credentials are used, for example by nova-compute, after a check with the user's token."""

    @abc.abstractmethod
    def show(self, ctx: RequestContext, image_id: str, token: str | None = None) -> Image: ...

    @abc.abstractmethod
    def index(self, ctx: RequestContext, filters: Mapping[str, str], limit: int | None = None,
              marker: str | None = None, token: str | None = None) -> list[Image]: ...

    @abc.abstractmethod
    def download(self, ctx: RequestContext, image_id: str, path: str, check_size: CheckSize) -> None:
        """Write the data of an image to a new file ``path``, and verify the size, and the checksum if there is one.
        ``check_size`` is called before the download with the size of the image; no more data are written than this
        size. Raises ImageUnacceptable if the size is unknown or wrong, and the exceptions of ``check_size``."""

    @abc.abstractmethod
    def create(self, ctx: RequestContext, image: Image) -> None:
        """Create an image without data (status queued). Succeeds if the image exists. Raises QuotaLimit."""

    @abc.abstractmethod
    def upload(self, ctx: RequestContext, image_id: str, path: str, disk_format: str) -> None:
        """Upload the file ``path`` as the data of a queued image, which becomes active. Does nothing if the image
        is active. Raises DiskFull, QuotaLimit."""

    @abc.abstractmethod
    def delete(self, ctx: RequestContext, image_id: str, token: str | None = None) -> None: ...

    @abc.abstractmethod
    def set_properties(self, ctx: RequestContext, image_id: str, properties: Mapping[str, str | None],
                       replace: bool, token: str | None = None, max_properties: int = -1) -> Image:
        """Merge or replace the extra properties of an image and return it. A property with the value None is deleted.
        ``max_properties``: maximum number of properties after the change (-1: unlimited). Raises QuotaLimit."""
