"""Images in a directory: the files ``<id>`` with the data and ``<id>.json`` with the metadata of an image."""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping

import msgspec

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.context import RequestContext
from nova.image import transfer
from nova.image.base import CheckSize, ImageStore, check_property_count
from nova.objects.base import new_uuid, utcnow
from nova.objects.images.image import Image

LOG = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# The role that may change images of its project.
_WRITER = "member"


class DirectoryStore(ImageStore):
    """The image back end "directory". Callers with a token are users. They may read public images and images of their
    project, which members may change."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory

    @property
    def directory(self) -> str:
        return self._directory or str(CONF.image.directory)

    def show(self, ctx: RequestContext, image_id: str, token: str | None = None) -> Image:
        image = self._load(image_id)
        if image is None or (token and not _visible(ctx, image)):
            raise exception.ImageNotFound(image_id=image_id)
        return image

    def index(self, ctx: RequestContext, filters: Mapping[str, str], limit: int | None = None,
              marker: str | None = None, token: str | None = None) -> list[Image]:
        """Return images, newest first. ``filters`` are as in Glance: fields, ``size_min``, ``size_max``, ``updated_at``
        and properties."""
        images = sorted(self._all(), key=lambda image: (image.created_at or "", image.id), reverse=True)
        images = [image for image in images if not token or _visible(ctx, image)]
        if marker is not None:
            position = next((number for number, image in enumerate(images) if image.id == marker), None)
            if position is None:
                raise exception.MarkerNotFound(marker=marker)
            images = images[position + 1:]
        return [image for image in images
                if all(_match(image, name, str(value)) for name, value in filters.items())][:limit]

    def download(self, ctx: RequestContext, image_id: str, path: str, check_size: CheckSize) -> None:
        image = self.show(ctx, image_id)
        if image.status != "active":
            raise exception.ImageNotActive(image_id=image_id)
        try:
            size = os.stat(self._data(image_id)).st_size if image.size is None else image.size
            check_size(size)
            transfer.save(transfer.read(self._data(image_id)), path, size,
                          ("md5", image.checksum) if image.checksum else None)
        except FileNotFoundError as error:
            if not os.path.exists(self._data(image_id)):
                raise exception.ImageNotFound(image_id=image_id) from error
            raise
        except transfer.Incomplete as error:
            raise exception.ImageUnacceptable(image_id=image_id, reason=str(error)) from error

    def create(self, ctx: RequestContext, image: Image) -> None:
        self._make_directory()
        with self._locked():
            if self._load(image.id) is None:
                self._check_quota(image)
                self._save(msgspec.structs.replace(image, status="queued", created_at=_now(), updated_at=_now()))

    def upload(self, ctx: RequestContext, image_id: str, path: str, disk_format: str) -> None:
        if self.show(ctx, image_id).status == "active":
            return
        self._check_quota(self.show(ctx, image_id), os.stat(path).st_size)
        partial = os.path.join(self.directory, f".{image_id}.{new_uuid()}")
        size, checksum = _copy(path, partial)
        try:
            with self._locked():
                # raises ImageNotFound if the image was deleted during the copy
                image = self.show(ctx, image_id)
                self._check_quota(image, size)
                self._put(partial, self._data(image_id))
                self._save(msgspec.structs.replace(image, status="active", size=size, checksum=checksum,
                                                   disk_format=disk_format, container_format="bare", updated_at=_now()))
                self._delete_partial_files(image_id)
        finally:
            files.remove(partial)
        LOG.info("Uploaded image %s: %d bytes", image_id, size)

    def delete(self, ctx: RequestContext, image_id: str, token: str | None = None) -> None:
        with self._locked():
            image = self._writable(ctx, image_id, token)
            if image.protected:
                raise exception.ImageNotAuthorized(image_id=image_id)
            files.remove(self._meta(image_id), self._data(image_id))
            self._delete_partial_files(image_id)
        LOG.info("Deleted image %s", image_id)

    def set_properties(self, ctx: RequestContext, image_id: str, properties: Mapping[str, str | None],
                       replace: bool, token: str | None = None, max_properties: int = -1) -> Image:
        with self._locked():
            image = self._writable(ctx, image_id, token)
            wanted = {**({} if replace else image.properties), **properties}
            image.properties = {name: value for name, value in wanted.items() if value is not None}
            check_property_count(image.properties, max_properties)
            image.updated_at = _now()
            self._save(image)
        return image

    def add(self, path: str, image: Image) -> Image:
        """Copy the file ``path`` as an image, replacing an image with the same id, and return the image. Raises
        InvalidInput (invalid id, unreadable file), DiskFull."""
        if not _ID.fullmatch(image.id):
            raise exception.InvalidInput(reason=f"{image.id!r} is not a valid id of an image")
        self._make_directory()
        partial = os.path.join(self.directory, f".{image.id}.new")
        try:
            size, checksum = _copy(path, partial)
        except OSError as error:
            raise exception.InvalidInput(reason=f"{path} cannot be read: {error.strerror}") from error
        self._put(partial, self._data(image.id))
        before = self._load(image.id)
        added = msgspec.structs.replace(image, status="active", size=size, checksum=checksum,
                                        created_at=before.created_at if before else _now(), updated_at=_now())
        self._save(added)
        LOG.info("Added image %s (%s): %d bytes", added.id, added.name, size)
        return added

    # --- files ------------------------------------------------------------------------------------
    def _all(self) -> list[Image]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        images = [self._load(name.removesuffix(".json")) for name in names
                  if name.endswith(".json") and not name.startswith(".")]
        return [image for image in images if image is not None]

    def _load(self, image_id: str) -> Image | None:
        if not _ID.fullmatch(image_id):
            return None
        try:
            with open(self._meta(image_id), "rb") as file:
                return msgspec.json.decode(file.read(), type=Image)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            LOG.error("Ignoring image %s, whose metadata file is malformed: %s", image_id, error)
            return None
        except OSError as error:
            LOG.error("Cannot read the image directory, the request fails: %s", error)
            raise exception.ImageBackendUnavailable(
                reason=f"the image directory cannot be read ({error.strerror})") from error

    def _save(self, image: Image) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(image)))
        self._put(temporary, self._meta(image.id))

    def _delete_partial_files(self, image_id: str) -> None:
        """Delete the files of interrupted uploads of an image."""
        files.remove(*(os.path.join(self.directory, name) for name in os.listdir(self.directory)
                       if name.startswith(f".{image_id}.")))

    def _make_directory(self) -> None:
        if not os.path.isdir(self.directory):
            os.makedirs(self.directory, mode=0o750, exist_ok=True)
            _chown_like(self.directory, os.path.dirname(os.path.abspath(self.directory)))

    def _put(self, temporary: str, path: str) -> None:
        """Move a file to its final name, readable only by Nova's services, since images may be private."""
        os.chmod(temporary, 0o640)
        _chown_like(temporary, self.directory)
        os.replace(temporary, path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory, which serializes changes. Does nothing if the directory does not exist."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError):
                path = os.path.join(self.directory, ".lock")
                handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o640)
                stack.callback(os.close, handle)
                _chown_like(path, self.directory)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _check_quota(self, image: Image, size: int = 0) -> None:
        """Raise QuotaLimit if the image, with ``size`` bytes, exceeds a quota of its project."""
        max_images, max_gb = CONF.image.quota_images, CONF.image.quota_gigabytes
        others = [other for other in self._all() if other.owner == image.owner and other.id != image.id]
        if 0 <= max_images <= len(others):
            raise exception.QuotaLimit("Maximum number of images exceeded")
        if max_gb >= 0 and size + sum(other.size or 0 for other in others) > max_gb << 30:
            raise exception.QuotaLimit("Maximum size of images exceeded")

    def _writable(self, ctx: RequestContext, image_id: str, token: str | None) -> Image:
        image = self.show(ctx, image_id, token)
        if token and not _admin(ctx) and (image.owner != ctx.project_id or _WRITER not in ctx.roles):
            raise exception.ImageNotAuthorized(image_id=image_id)
        return image

    def _data(self, image_id: str) -> str:
        return os.path.join(self.directory, image_id)

    def _meta(self, image_id: str) -> str:
        return os.path.join(self.directory, f"{image_id}.json")


def _copy(path: str, target: str) -> tuple[int, str]:
    """Copy a file and return its size and MD5 checksum. Raises DiskFull."""
    sums = hashlib.md5(usedforsecurity=False)

    def chunks() -> Iterator[bytes]:
        for chunk in transfer.read(path):
            sums.update(chunk)
            yield chunk

    return transfer.save(chunks(), target), sums.hexdigest()


def _admin(ctx: RequestContext) -> bool:
    return bool(ctx.is_admin) or "admin" in ctx.roles


def _visible(ctx: RequestContext, image: Image) -> bool:
    return image.visibility in ("public", "community") or _admin(ctx) or (
        image.owner is not None and image.owner == ctx.project_id) or ctx.project_id in image.members


def _match(image: Image, name: str, value: str) -> bool:
    if name in ("id", "name", "status", "disk_format", "container_format", "visibility", "owner", "checksum"):
        return str(getattr(image, name) or "") == value
    if name in ("min_ram", "min_disk", "size"):
        return str(getattr(image, name)) == value
    if name in ("size_min", "size_max"):
        if image.size is None or not value.isdecimal():
            return False
        return image.size >= int(value) if name == "size_min" else image.size <= int(value)
    if name in ("updated_at", "created_at"):
        operator, _colon, when = value.partition(":")
        actual = getattr(image, name) or ""
        compare = {"gte": actual >= when, "gt": actual > when, "lte": actual <= when, "lt": actual < when}
        return compare.get(operator, actual == value)
    return image.properties.get(name) == value


def _now() -> str:
    return utcnow().strftime("%Y-%m-%dT%H:%M:%SZ")


def _chown_like(path: str, folder: str) -> None:
    """Give a file the owner of its folder, if this process runs as root."""
    if os.geteuid() == 0:
        owner = os.stat(folder)
        os.chown(path, owner.st_uid, owner.st_gid)
