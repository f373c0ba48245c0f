"""Images in Glance (API v2)."""

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
from nova.image.base import CheckSize, ImageStore, check_property_count
from nova.objects.images.image import Image
from nova.service_clients import TIMEOUT, ServiceClient, Unreachable, decode_response

LOG = logging.getLogger(__name__)

T = TypeVar("T")

GROUP = "glance"
PAGE = 1000
# Timeout in seconds of the response to an upload: Glance may store the data only after a proxy has buffered all of it.
STORE_TIMEOUT = 600
PATCH = "application/openstack-images-v2.1-json-patch"
# Fields of Glance's API that Nova uses; all other names except _OTHER are properties.
_FIELDS = frozenset(Image.__struct_fields__) - {"properties", "certificate", "members"}
_OTHER = frozenset({"self", "file", "schema", "tags", "locations", "direct_url", "os_hash_algo", "os_hash_value",
                    "os_hidden", "stores"})
# Prefix of properties that Glance sets itself and that clients cannot change.
_RESERVED = ("os_glance_",)


class _Page(TypedDict):
    images: list[dict[str, Any]]


class GlanceStore(ImageStore):
    """The image back end "glance"."""

    def __init__(self) -> None:
        self._glance = ServiceClient(GROUP, {"service_type": "image", "interface": ["internal", "public"]}, ("/v2",))

    def show(self, ctx: RequestContext, image_id: str, token: str | None = None) -> Image:
        return to_image(self._raw(ctx, image_id, token))

    def index(self, ctx: RequestContext, filters: Mapping[str, str], limit: int | None = None,
              marker: str | None = None, token: str | None = None) -> list[Image]:
        """Return images, newest first. ``filters`` are query parameters of Glance."""
        images: list[Image] = []
        while limit is None or len(images) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(images))
            query = {**filters, "limit": wanted, **({"marker": marker} if marker else {})}
            page = self._retry(functools.partial(self._page, ctx, query, token))
            images += [to_image(raw) for raw in page["images"]]
            if "next" not in page or not page["images"]:
                break
            marker = page["images"][-1]["id"]
        return images

    def download(self, ctx: RequestContext, image_id: str, path: str, check_size: CheckSize) -> None:
        raw = self._raw(ctx, image_id, None)
        if raw.get("status") != "active":
            raise exception.ImageNotActive(image_id=image_id)
        if not isinstance(raw.get("size"), int):
            raise exception.ImageUnacceptable(image_id=image_id, reason="its size is unknown")
        check_size(raw["size"])
        try:
            self._retry(lambda: self._download(ctx, image_id, path, raw))
        except transfer.Incomplete as error:
            raise exception.ImageUnacceptable(image_id=image_id, reason=str(error)) from error

    def create(self, ctx: RequestContext, image: Image) -> None:
        body = {**image.properties, "id": image.id, "name": image.name, "owner": image.owner,
                "visibility": image.visibility, "min_disk": image.min_disk, "min_ram": image.min_ram}

        def create() -> None:
            with contextlib.suppress(exception.Conflict):  # created by an earlier attempt
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
                              timeout=(CONF.glance.timeout or TIMEOUT, STORE_TIMEOUT),
                              headers={"Content-Type": "application/octet-stream"}).close()
            except exception.Conflict as error:
                raise exception.ImageBackendUnavailable(reason="another upload to the image is in progress") from error

        self._retry(upload)
        LOG.info("Uploaded image %s", image_id)

    def delete(self, ctx: RequestContext, image_id: str, token: str | None = None) -> None:
        self._retry(lambda: self._request(ctx, "DELETE", self._path(image_id), token, image_id).close())

    def set_properties(self, ctx: RequestContext, image_id: str, properties: Mapping[str, str | None],
                       replace: bool, token: str | None = None, max_properties: int = -1) -> Image:
        def change() -> Image:
            current = _body(self._request(ctx, "GET", self._path(image_id), token, image_id))
            before = to_image(current).properties
            changes = patch(before, properties, replace)
            wanted = {**({} if replace else before), **properties}
            check_property_count([name for name, value in wanted.items() if value is not None], max_properties)
            if not changes:
                return to_image(current)
            response = self._request(ctx, "PATCH", self._path(image_id), token, image_id, json=changes,
                                     headers={"Content-Type": PATCH})
            return to_image(_body(response))

        return self._retry(change)

    # --- requests ---------------------------------------------------------------------------------
    def _raw(self, ctx: RequestContext, image_id: str, token: str | None) -> dict[str, Any]:
        return self._retry(lambda: _body(self._request(ctx, "GET", self._path(image_id), token, image_id)))

    def _page(self, ctx: RequestContext, query: Mapping[str, Any], token: str | None) -> dict[str, Any]:
        marker = str(query.get("marker", ""))
        try:
            return _body(self._request(ctx, "GET", "/v2/images", token, marker, params=query), _Page)
        except (exception.ImageNotFound, exception.InvalidInput) as error:
            if marker:
                raise exception.MarkerNotFound(marker=marker) from error
            raise

    def _download(self, ctx: RequestContext, image_id: str, path: str, raw: Mapping[str, Any]) -> None:
        digest = None
        if raw.get("os_hash_algo") and raw.get("os_hash_value"):
            digest = (str(raw["os_hash_algo"]), str(raw["os_hash_value"]))
        elif raw.get("checksum"):
            digest = ("md5", str(raw["checksum"]))
        response = self._request(ctx, "GET", self._path(image_id) + "/file", None, image_id, stream=True)
        with contextlib.closing(response):
            if response.status_code == 204:
                raise exception.ImageUnacceptable(image_id=image_id, reason="it has no data")
            size = transfer.save(_chunks(response), path, raw["size"], digest)
        LOG.info("Downloaded image %s: %d bytes", image_id, size)

    def _retry(self, function: Callable[[], T]) -> T:
        """Call a function and retry it if Glance is unavailable or a transfer is incomplete."""
        for retries_left in range(CONF.glance.num_retries, -1, -1):
            try:
                return function()
            except (exception.ImageBackendUnavailable, transfer.Incomplete) as error:
                if not retries_left:
                    raise
                LOG.warning("A request to Glance failed, retrying in 1 s: %s", error)
                time.sleep(1)
        raise AssertionError("not reached")

    def _request(self, ctx: RequestContext, method: str, path: str, token: str | None, image_id: str,
                 **more: Any) -> requests.Response:
        """Send a request and return the response. Raises the exceptions of ImageStore for errors."""
        try:
            response = self._glance.request(ctx, method, path, token, **more)
        except Unreachable as error:
            raise exception.ImageBackendUnavailable(reason=str(error)) from error
        status = response.status_code
        if status < 300:
            return response
        response.close()
        errors: dict[int, exception.NovaException] = {
            400: exception.InvalidInput(reason="the image service rejected the request"),
            403: exception.ImageNotAuthorized(image_id=image_id), 404: exception.ImageNotFound(image_id=image_id),
            409: exception.Conflict(f"Image {image_id} is in use."),
            413: exception.QuotaLimit("Image metadata limit exceeded")}
        raise errors.get(403 if status == 401 and token else status, exception.ImageBackendUnavailable(
            reason=f"the service responded with status {status}"))

    @staticmethod
    def _path(image_id: str) -> str:
        # Users choose ids: reject characters that would change the path of the request.
        if not image_id.replace("-", "").replace("_", "").isalnum() or not image_id.isascii():
            raise exception.ImageNotFound(image_id=image_id)
        return f"/v2/images/{image_id}"


class _Data:
    """The content of a file as a request body, which can be sent again if the token has expired."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __len__(self) -> int:
        return os.stat(self._path).st_size

    def __iter__(self) -> Iterator[bytes]:
        return iter(transfer.read(self._path))


def _chunks(response: requests.Response) -> Iterator[bytes]:
    try:
        yield from response.iter_content(transfer.CHUNK)
    except requests.RequestException as error:
        raise transfer.Incomplete(f"the connection broke: {type(error).__name__}") from error


def _body(response: requests.Response, shape: Any = dict[str, Any]) -> dict[str, Any]:
    try:
        body: dict[str, Any] = decode_response(response, shape)
    except Unreachable as error:
        raise exception.ImageBackendUnavailable(reason=str(error)) from error
    return body


def to_image(raw: Mapping[str, Any]) -> Image:
    """Convert an image of Glance's API. Raises ImageBackendUnavailable if the description is malformed."""
    fields = {name: raw[name] for name in _FIELDS if raw.get(name) is not None}
    properties = {name: str(value) for name, value in raw.items()
                  if name not in _FIELDS and name not in _OTHER and value is not None}
    try:
        return msgspec.convert({**fields, "properties": properties}, Image)
    except msgspec.ValidationError as error:
        raise exception.ImageBackendUnavailable(reason=f"its response is malformed ({error})") from error


def patch(now: Mapping[str, str], wanted: Mapping[str, str | None], replace: bool) -> list[dict[str, str]]:
    """Return the JSON patch that changes the properties ``now`` to ``wanted`` (None: delete the property)."""
    changes = [{"op": "replace" if name in now else "add", "path": _pointer(name), "value": value}
               for name, value in wanted.items() if value is not None and now.get(name) != value]
    return changes + [{"op": "remove", "path": _pointer(name)} for name in now if (
        wanted[name] is None if name in wanted else replace and not name.startswith(_RESERVED))]


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")
