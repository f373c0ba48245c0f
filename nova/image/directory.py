"""Images in a directory: ``<id>`` holds the data, ``<id>.json`` what is known of it."""

from __future__ import annotations

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
from nova.conf import CONF
from nova.context import RequestContext
from nova.image import transfer
from nova.image.base import Admit, ImageStore, check_number
from nova.objects.base import new_uuid, utcnow
from nova.objects.image import Image

LOG = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FIELDS = ("id", "name", "status", "disk_format", "container_format", "visibility", "owner", "checksum")
# The role that changes what belongs to its project; readers only look.
_WRITER = "member"
_NUMBERS = ("min_ram", "min_disk", "size")


class DirectoryStore(ImageStore):
    """Callers with a token are users: they see public images and those of their project, which members may change."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory

    @property
    def directory(self) -> str:
        return self._directory or str(CONF.image.directory)

    def show(self, ctx: RequestContext, image_id: str, token: str | None = None) -> Image:
        found = self._load(image_id)
        if found is None or (token and not _visible(ctx, found)):
            raise exception.ImageNotFound(image_id=image_id)
        return found

    def index(self, ctx: RequestContext, filters: Mapping[str, str], limit: int | None = None,
              marker: str | None = None, token: str | None = None) -> list[Image]:
        """Newest first. Filters are Glance's: fields, ``size_min``/``size_max``, ``updated_at`` and properties."""
        images = sorted(self._all(), key=lambda image: (image.created_at or "", image.id), reverse=True)
        images = [image for image in images if not token or _visible(ctx, image)]
        if marker is not None:
            position = next((number for number, image in enumerate(images) if image.id == marker), None)
            if position is None:
                raise exception.MarkerNotFound(marker=marker)
            images = images[position + 1:]
        return [image for image in images if _matches(image, filters)][:limit]

    def download(self, ctx: RequestContext, image_id: str, path: str, admit: Admit) -> None:
        found = self.show(ctx, image_id)
        if found.status != "active":
            raise exception.ImageNotActive(image_id=image_id)
        try:
            size = os.stat(self._data(image_id)).st_size if found.size is None else found.size
            admit(size)
            transfer.save(transfer.read(self._data(image_id)), path, size,
                          ("md5", found.checksum) if found.checksum else None)
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
                # whoever deleted it meanwhile has the last word
                found = self.show(ctx, image_id)
                self._check_quota(found, size)
                self._put(partial, self._data(image_id))
                self._save(msgspec.structs.replace(found, status="active", size=size, checksum=checksum,
                                                   disk_format=disk_format, container_format="bare", updated_at=_now()))
                self._forget_partial(image_id)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
        LOG.info("Image %s uploaded: %d bytes", image_id, size)

    def delete(self, ctx: RequestContext, image_id: str, token: str | None = None) -> None:
        with self._locked():
            found = self._writable(ctx, image_id, token)
            if found.protected:
                raise exception.ImageNotAuthorized(image_id=image_id)
            for path in (self._meta(image_id), self._data(image_id)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            self._forget_partial(image_id)
        LOG.info("Image %s deleted", image_id)

    def set_properties(self, ctx: RequestContext, image_id: str, properties: Mapping[str, str | None],
                       replace: bool, token: str | None = None, most: int = -1) -> Image:
        with self._locked():
            found = self._writable(ctx, image_id, token)
            wanted = {**({} if replace else found.properties), **properties}
            found.properties = {name: value for name, value in wanted.items() if value is not None}
            check_number(found.properties, most)
            found.updated_at = _now()
            self._save(found)
        return found

    def add(self, path: str, image: Image) -> Image:
        """Take a copy of the file ``path`` as an image, replacing one of the same id; returns what is now known.

        Raises InvalidInput (unusable id or file), DiskFull.
        """
        if not _ID.fullmatch(image.id):
            raise exception.InvalidInput(reason=f"{image.id!r} is no id for an image")
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
        LOG.info("Image %s (%s) added: %d bytes", added.id, added.name, size)
        return added

    # --- files ------------------------------------------------------------------------------------
    def _all(self) -> list[Image]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        found = [self._load(name.removesuffix(".json")) for name in names
                 if name.endswith(".json") and not name.startswith(".")]
        return [image for image in found if image is not None]

    def _load(self, image_id: str) -> Image | None:
        if not _ID.fullmatch(image_id):
            return None
        try:
            with open(self._meta(image_id), "rb") as file:
                return msgspec.json.decode(file.read(), type=Image)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            LOG.error("Ignoring the image %s: %s", image_id, error)
            return None
        except OSError as error:
            LOG.error("The image directory cannot be read: %s", error)
            raise exception.ImageBackendUnavailable(reason="the image directory cannot be read") from error

    def _save(self, image: Image) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(image)))
        self._put(temporary, self._meta(image.id))

    def _forget_partial(self, image_id: str) -> None:
        """What uploads of the image had written that did not come to their end, whoever died of what."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.directory):
                if name.startswith(f".{image_id}."):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.directory, name))

    def _make_directory(self) -> None:
        if not os.path.isdir(self.directory):
            os.makedirs(self.directory, mode=0o750, exist_ok=True)
            _give(self.directory, os.path.dirname(os.path.abspath(self.directory)))

    def _put(self, temporary: str, path: str) -> None:
        """What is in the file is for Nova's services: some images are of one project alone."""
        os.chmod(temporary, 0o640)
        _give(temporary, self.directory)
        os.replace(temporary, path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else decides about an image meanwhile. No directory: fine."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError):
                path = os.path.join(self.directory, ".lock")
                handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o640)
                stack.callback(os.close, handle)
                _give(path, self.directory)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _check_quota(self, image: Image, size: int = 0) -> None:
        """Whether its project may have the image, with ``size`` bytes, beside its others. Raises QuotaLimit."""
        most, most_gb = CONF.image.quota_images, CONF.image.quota_gigabytes
        others = [each for each in self._all() if each.owner == image.owner and each.id != image.id]
        if 0 <= most <= len(others):
            raise exception.QuotaLimit("Maximum number of images exceeded")
        if most_gb >= 0 and size + sum(each.size or 0 for each in others) > most_gb << 30:
            raise exception.QuotaLimit("Maximum size of images exceeded")

    def _writable(self, ctx: RequestContext, image_id: str, token: str | None) -> Image:
        found = self.show(ctx, image_id, token)
        if token and not _admin(ctx) and (found.owner != ctx.project_id or _WRITER not in ctx.roles):
            raise exception.ImageNotAuthorized(image_id=image_id)
        return found

    def _data(self, image_id: str) -> str:
        return os.path.join(self.directory, image_id)

    def _meta(self, image_id: str) -> str:
        return os.path.join(self.directory, f"{image_id}.json")


def _copy(path: str, target: str) -> tuple[int, str]:
    """Copy a file; its size and its MD5 checksum. Raises DiskFull."""
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


def _matches(image: Image, filters: Mapping[str, str]) -> bool:
    return all(_match(image, name, str(value)) for name, value in filters.items())


def _match(image: Image, name: str, value: str) -> bool:
    if name in _FIELDS:
        return str(getattr(image, name) or "") == value
    if name in _NUMBERS:
        return str(getattr(image, name)) == value
    if name in ("size_min", "size_max"):
        if image.size is None or not value.isdecimal():
            return False
        return image.size >= int(value) if name == "size_min" else image.size <= int(value)
    if name in ("updated_at", "created_at"):
        operator, _colon, when = value.partition(":")
        have = getattr(image, name) or ""
        compare = {"gte": have >= when, "gt": have > when, "lte": have <= when, "lt": have < when}
        return compare.get(operator, have == value)
    return image.properties.get(name) == value


def _now() -> str:
    return utcnow().strftime("%Y-%m-%dT%H:%M:%SZ")


def _give(path: str, folder: str) -> None:
    """Whoever has the folder has the file, whichever service or operator made it."""
    if os.geteuid() == 0:
        owner = os.stat(folder)
        os.chown(path, owner.st_uid, owner.st_gid)
