"""The static web pages of a console proxy, read from one directory."""

import mimetypes
import os
from http import HTTPStatus
from urllib.parse import unquote

_MAX_SIZE = 16 * 1024 * 1024  # maximum size of a web page in bytes
# The URL of a page has a token, which must not be sent to other sites as the referrer.
_HEADERS = {"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json", ".svg": "image/svg+xml",
          ".woff2": "font/woff2", ".wasm": "application/wasm"}

Page = tuple[HTTPStatus, dict[str, str], bytes]


def missing() -> Page:
    return _plain(HTTPStatus.NOT_FOUND, "There is no such page.")


def read(directory: str, path: str) -> Page:
    """Return status, headers and content of the page at this path of a request."""
    if path.startswith("//"):
        return _plain(HTTPStatus.BAD_REQUEST, "A path must begin with one slash.")
    name = unquote(path.partition("?")[0])
    root = os.path.realpath(directory)
    file = os.path.realpath(os.path.join(root, name.lstrip("/"))) if "\0" not in name else root
    if name.endswith("/") or not file.startswith(root + os.sep):
        return missing()
    try:
        with open(file, "rb") as opened:
            if os.fstat(opened.fileno()).st_size > _MAX_SIZE:
                return missing()
            content = opened.read()
    except OSError:
        return missing()
    return HTTPStatus.OK, {"Content-Type": _type_of(file), **_HEADERS}, content


def _type_of(file: str) -> str:
    ending = os.path.splitext(file)[1].lower()
    kind = _TYPES.get(ending) or mimetypes.guess_type(file)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _plain(status: HTTPStatus, text: str) -> Page:
    return status, {"Content-Type": "text/plain; charset=utf-8", **_HEADERS}, f"{text}\n".encode()
