"""The interface of an image back end.

Used by the API (show, list), conductors (create, delete) and computes (download, upload).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping

from nova import exception
from nova.context import RequestContext
from nova.objects.image import Image

# Told the size of an image in bytes; raises what is to be raised where that is too much.
Admit = Callable[[int], None]


def check_number(properties: Collection[str], most: int) -> None:
    """Raises QuotaLimit for an image with more properties than it may have (-1: any number)."""
    if 0 <= most < len(properties):
        raise exception.QuotaLimit("Image metadata limit exceeded")


class ImageStore(abc.ABC):
    """Raises ImageNotFound, ImageNotAuthorized, ImageBackendUnavailable.

    ``token`` is the caller's Keystone token, where the caller is a user: what the user may not
    see is not found. Without one the service's own credentials are used (a compute downloads
    an image that was checked when the server was accepted).
    """

    @abc.abstractmethod
    def show(self, ctx: RequestContext, image_id: str, token: str | None = None) -> Image: ...

    @abc.abstractmethod
    def index(self, ctx: RequestContext, filters: Mapping[str, str], limit: int | None = None,
              marker: str | None = None, token: str | None = None) -> list[Image]: ...

    @abc.abstractmethod
    def download(self, ctx: RequestContext, image_id: str, path: str, admit: Admit) -> None:
        """Write the image's data to ``path`` (a new file), checking size, and checksum if known.

        ``admit`` is called before anything is written, and what it raises is raised; never more is written than it
        was told. Raises ImageUnacceptable when nobody knows how large the image is, or it is of another size.
        """

    @abc.abstractmethod
    def create(self, ctx: RequestContext, image: Image) -> None:
        """The image is known from now on, and waits for its data (queued). An id that is known already: fine.

        Raises QuotaLimit.
        """

    @abc.abstractmethod
    def upload(self, ctx: RequestContext, image_id: str, path: str, disk_format: str) -> None:
        """Give an image that waits for them its data, the file ``path``; it is active then. One that is: fine.

        Raises DiskFull, QuotaLimit.
        """

    @abc.abstractmethod
    def delete(self, ctx: RequestContext, image_id: str, token: str | None = None) -> None: ...

    @abc.abstractmethod
    def set_properties(self, ctx: RequestContext, image_id: str, properties: Mapping[str, str | None],
                       replace: bool, token: str | None = None, most: int = -1) -> Image:
        """Merge or replace the image's extra properties; it has none of those that are None.

        ``most``: how many it may have then (-1: any number). Raises QuotaLimit.
        """
