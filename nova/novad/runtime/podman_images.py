"""Pulls of images by the podman service, cancelled before they fill the disk."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from nova.novad.errors import ImageFault, RuntimeFault
from nova.novad.runtime import registry
from nova.novad.runtime.podman_stream import PodmanStream

MARGIN = 64 << 20  # Bytes of the disk that stay free of images.
_MIB = 1 << 20
_POLL_INTERVAL = 0.2  # seconds between two polls of the disk
_TIMEOUT = 1800.0  # seconds in which podman may report nothing
_REASON = 400  # characters of the end of podman's error message


def pull(path: str, reference: str, storage: pathlib.Path, limit: int) -> str:
    """Pull an image into the storage of a podman service at the socket ``path``; return its id.

    ``limit``: maximum size of the compressed layers in bytes (0: unlimited). Raises ImageFault, RuntimeFault.
    """
    _check_size(reference, storage, limit)
    what = f"{reference} cannot be fetched"
    query = urllib.parse.urlencode({"reference": reference, "policy": "always", "compatMode": "false",
                                    "tlsVerify": str(not registry.is_on_loopback(reference)).lower()})
    try:
        stream = PodmanStream(path, what, "POST", f"/images/pull?{query}", timeout=_TIMEOUT)
    except RuntimeFault as error:
        raise RuntimeFault(f"{error.message}{disk_note(storage)}") from None
    try:
        stream.expect(200)
    except RuntimeFault as error:
        raise ImageFault(f"{error.message.removeprefix('podman: ')}{disk_note(storage)}") from None
    ident = ""
    with _guarded(stream, storage) as full:
        for report in stream.documents():
            if report.get("error"):
                raise ImageFault(f"{what}: {str(report['error'])[-_REASON:]}{disk_note(storage)}")
            ident = str(report.get("id") or ident)
    if full.is_set():
        raise ImageFault(f"{what}: the pull was cancelled, since less than {MARGIN // _MIB} MiB are free in {storage}.")
    if not ident:
        raise ImageFault(f"{what}: podman reported no reason.{disk_note(storage)}")
    return ident.removeprefix("sha256:")


def _check_size(reference: str, storage: pathlib.Path, limit: int) -> None:
    """Raise ImageFault if the image is too large to be pulled."""
    size = registry.size(reference)
    if size is None:
        return
    if limit and size > limit:
        raise ImageFault(f"{reference} has layers of {size // _MIB} MiB, and image_limit is {limit // _MIB} MiB.")
    free = shutil.disk_usage(storage).free
    if size + MARGIN > free:
        raise ImageFault(f"{reference} has layers of {size // _MIB} MiB, which take more when they are unpacked, and "
                         f"{free // _MIB} MiB are free in {storage}.")


@contextlib.contextmanager
def _guarded(stream: PodmanStream, storage: pathlib.Path) -> Iterator[threading.Event]:
    """Close the stream, which cancels the pull, if the disk has no room left. Yields an event for this."""
    done, full = threading.Event(), threading.Event()

    def watch() -> None:
        with contextlib.suppress(OSError):
            while not done.wait(_POLL_INTERVAL):
                if shutil.disk_usage(storage).free < MARGIN:
                    full.set()
                    stream.close()
                    return

    watcher = threading.Thread(target=watch, name="pull", daemon=True)
    watcher.start()
    try:
        yield full
    finally:
        done.set()
        watcher.join()
        stream.free()


def disk_note(storage: pathlib.Path | None) -> str:
    """Return a sentence about the free space if a full disk may be the cause of an error."""
    with contextlib.suppress(OSError):
        if storage is not None and (free := shutil.disk_usage(storage).free) < MARGIN:
            return f" (the disk of {storage} is full: {free // _MIB} MiB are free)"
    return ""


def graph_root(path: str) -> pathlib.Path:
    """Return the path of the podman service's image storage. Raises RuntimeFault."""
    stream = PodmanStream(path, "its storage is unknown", "GET", "/info").expect(200)
    try:
        info: Any = json.loads(stream.read())
        return pathlib.Path(info["store"]["graphRoot"])
    except (ValueError, KeyError, TypeError) as error:
        raise stream.fault(error) from None
    finally:
        stream.free()
