"""Images in Glance (API v2)."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar

import msgspec
import requests

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.image import transfer
from nova.image.base import Admit, ImageStore, check_number
from nova.objects.image import Image
from nova.service_clients import TIMEOUT, ServiceClient, Unreachable, decode_response

LOG = logging.getLogger(__name__)

T = TypeVar("T")

GROUP = "glance"
PAGE = 1000
# Seconds for which Glance may put data away that it has got: a proxy before it may have kept them all until then.
STORING = 600
PATCH = "application/openstack-images-v2.1-json-patch"
# What Glance itself says of an image; everything else is a property.
_FIELDS = frozenset(Image.__struct_fields__) - {"properties", "certificate", "members"}
_OTHER = frozenset({"self", "file", "schema", "tags", "locations", "direct_url", "os_hash_algo", "os_hash_value",
                    "os_hidden", "stores"})
# Set by Glance for itself; it refuses changes of them.
_RESERVED = ("os_glance_",)


class _Page(TypedDict):
    images: list[dict[str, Any]]


class GlanceStore(ImageStore):
    """``[image]driver`` glance."""

    def __init__(self) -> None:
        self._glance = ServiceClient(GROUP, {"service_type": "image", "interface": ["internal", "public"]}, ("/v2",))

    def show(self, ctx: RequestContext, image_id: str, token: str | None = None) -> Image:
        return to_image(self._raw(ctx, image_id, token))

    def index(self, ctx: RequestContext, filters: Mapping[str, str], limit: int | None = None,
              marker: str | None = None, token: str | None = None) -> list[Image]:
        """Newest first. ``filters`` are query parameters of Glance."""
        found: list[Image] = []
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            query = {**filters, "limit": wanted, **({"marker": marker} if marker else {})}
            page = self._retry(functools.partial(self._page, ctx, query, token))
            found += [to_image(raw) for raw in page["images"]]
            if "next" not in page or not page["images"]:
                break
            marker = page["images"][-1]["id"]
        return found

    def download(self, ctx: RequestContext, image_id: str, path: str, admit: Admit) -> None:
        raw = self._raw(ctx, image_id, None)
        if raw.get("status") != "active":
            raise exception.ImageNotActive(image_id=image_id)
        if not isinstance(raw.get("size"), int):
            raise exception.ImageUnacceptable(image_id=image_id, reason="its size is not known")
        admit(raw["size"])
        try:
            self._retry(lambda: self._download(ctx, image_id, path, raw))
        except transfer.Incomplete as error:
            raise exception.ImageUnacceptable(image_id=image_id, reason=str(error)) from error

    def create(self, ctx: RequestContext, image: Image) -> None:
        body = {**image.properties, "id": image.id, "name": image.name, "owner": image.owner,
                "visibility": image.visibility, "min_disk": image.min_disk, "min_ram": image.min_ram}

        def create() -> None:
            with contextlib.suppress(exception.Conflict):  # it is there: the answer got lost
                self._request(ctx, "POST", "/v2/images", None, image.id, json=body).close()
            for member in image.members:
                with contextlib.suppress(exception.Conflict):
                    self._request(ctx, "POST", f"{self._path(image.id)}/members", None, image.id,
                                  json={"member": member}).close()

        self._retry(create)

    def upload(self, ctx: RequestContext, image_id: str, path: str, disk_format: str) -> None:
        formats = {"disk_format": disk_format, "container_format": "bare"}

        def upload() -> None:
            raw = _body(self._request(ctx, "GET", self._path(image_id), None, image_id))
            if raw.get("status") == "active":
                return
            changes = patch({name: raw[name] for name in formats if name in raw}, formats, replace=False)
            if changes:
                self._request(ctx, "PATCH", self._path(image_id), None, image_id, json=changes,
                              headers={"Content-Type": PATCH}).close()
            try:
                self._request(ctx, "PUT", self._path(image_id) + "/file", None, image_id, data=_Data(path),
                              timeout=(CONF.glance.timeout or TIMEOUT, STORING),
                              headers={"Content-Type": "application/octet-stream"}).close()
            except exception.Conflict as error:
                raise exception.ImageBackendUnavailable(reason="it takes data of somebody else") from error

        self._retry(upload)
        LOG.info("Image %s uploaded", image_id)

    def delete(self, ctx: RequestContext, image_id: str, token: str | None = None) -> None:
        self._retry(lambda: self._request(ctx, "DELETE", self._path(image_id), token, image_id).close())

    def set_properties(self, ctx: RequestContext, image_id: str, properties: Mapping[str, str | None],
                       replace: bool, token: str | None = None, most: int = -1) -> Image:
        def change() -> Image:
            now = _body(self._request(ctx, "GET", self._path(image_id), token, image_id))
            before = to_image(now).properties
            changes = patch(before, properties, replace)
            wanted = {**({} if replace else before), **properties}
            check_number([name for name, value in wanted.items() if value is not None], most)
            if not changes:
                return to_image(now)
            done = self._request(ctx, "PATCH", self._path(image_id), token, image_id, json=changes,
                                 headers={"Content-Type": PATCH})
            return to_image(_body(done))

        return self._retry(change)

    # --- requests ---------------------------------------------------------------------------------
    def _raw(self, ctx: RequestContext, image_id: str, token: str | None) -> dict[str, Any]:
        found: dict[str, Any] = self._retry(
            lambda: _body(self._request(ctx, "GET", self._path(image_id), token, image_id)))
        return found

    def _page(self, ctx: RequestContext, query: Mapping[str, Any], token: str | None) -> dict[str, Any]:
        marker = str(query.get("marker", ""))
        try:
            page = _body(self._request(ctx, "GET", "/v2/images", token, marker, params=query), _Page)
        except (exception.ImageNotFound, exception.InvalidInput) as error:
            if marker:
                raise exception.MarkerNotFound(marker=marker) from error
            raise
        return page

    def _download(self, ctx: RequestContext, image_id: str, path: str, raw: Mapping[str, Any]) -> None:
        digest = None
        if raw.get("os_hash_algo") and raw.get("os_hash_value"):
            digest = (str(raw["os_hash_algo"]), str(raw["os_hash_value"]))
        elif raw.get("checksum"):
            digest = ("md5", str(raw["checksum"]))
        answer = self._request(ctx, "GET", self._path(image_id) + "/file", None, image_id, stream=True)
        with contextlib.closing(answer):
            if answer.status_code == 204:
                raise exception.ImageUnacceptable(image_id=image_id, reason="it has no data")
            size = transfer.save(_chunks(answer), path, raw["size"], digest)
        LOG.info("Image %s downloaded: %d bytes", image_id, size)

    def _retry(self, function: Callable[[], T]) -> T:
        """Try again what failed on the way; what Glance decided stands."""
        for left in range(CONF.glance.num_retries, -1, -1):
            try:
                return function()
            except (exception.ImageBackendUnavailable, transfer.Incomplete) as error:
                if not left:
                    raise
                LOG.warning("Glance failed, trying again: %s", error)
                time.sleep(1)
        raise AssertionError("not reached")

    def _request(self, ctx: RequestContext, method: str, path: str, token: str | None, image_id: str,
                 **more: Any) -> requests.Response:
        """One request; every failure is one of ImageStore's errors."""
        try:
            answer = self._glance.request(ctx, method, path, token, **more)
        except Unreachable as error:
            raise exception.ImageBackendUnavailable(reason=str(error)) from error
        return _checked(answer, image_id, bool(token))

    @staticmethod
    def _path(image_id: str) -> str:
        # Ids come from users: only what cannot be another path is asked for.
        if not image_id.replace("-", "").replace("_", "").isalnum() or not image_id.isascii():
            raise exception.ImageNotFound(image_id=image_id)
        return f"/v2/images/{image_id}"


class _Data:
    """A file to send: all of it, also when it has to be sent again since a token had expired."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __len__(self) -> int:
        return os.stat(self._path).st_size

    def __iter__(self) -> Iterator[bytes]:
        return iter(transfer.read(self._path))


def _chunks(answer: requests.Response) -> Iterator[bytes]:
    try:
        yield from answer.iter_content(transfer.CHUNK)
    except requests.RequestException as error:
        raise transfer.Incomplete(f"the connection broke: {type(error).__name__}") from error


def _checked(answer: requests.Response, image_id: str, user: bool) -> requests.Response:
    status = answer.status_code
    if status < 300:
        return answer
    answer.close()
    if status == 404:
        raise exception.ImageNotFound(image_id=image_id)
    if status == 403 or (status == 401 and user):
        raise exception.ImageNotAuthorized(image_id=image_id)
    if status == 409:
        raise exception.Conflict(f"Image {image_id} is in use.")
    if status == 413:
        raise exception.QuotaLimit("Image metadata limit exceeded")
    if status == 400:
        raise exception.InvalidInput(reason="the image service refused the request")
    raise exception.ImageBackendUnavailable(reason=f"it answered {status}")


def _body(answer: requests.Response, shape: Any = dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = decode_response(answer, shape)
    except Unreachable as error:
        raise exception.ImageBackendUnavailable(reason=str(error)) from error
    return found


def to_image(raw: Mapping[str, Any]) -> Image:
    """Glance's description of an image as Nova's. Raises ImageBackendUnavailable: it is none."""
    fields = {name: raw[name] for name in _FIELDS if raw.get(name) is not None}
    properties = {name: str(value) for name, value in raw.items()
                  if name not in _FIELDS and name not in _OTHER and value is not None}
    try:
        return msgspec.convert({**fields, "properties": properties}, Image)
    except msgspec.ValidationError as error:
        raise exception.ImageBackendUnavailable(reason=f"its response is malformed ({error})") from error


def patch(now: Mapping[str, str], wanted: Mapping[str, str | None], replace: bool) -> list[dict[str, str]]:
    """The JSON patch that brings the properties of an image from ``now`` to ``wanted`` (None: without it)."""
    changes = [{"op": "replace" if name in now else "add", "path": _pointer(name), "value": value}
               for name, value in wanted.items() if value is not None and now.get(name) != value]
    return changes + [{"op": "remove", "path": _pointer(name)} for name in now if (
        wanted[name] is None if name in wanted else replace and not name.startswith(_RESERVED))]


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")
