"""Network namespaces: where they are, and running a function inside one."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ROOT = "/run/netns"
CLONE_NEWNET = 0x40000000


def identity(name: str) -> tuple[int, int] | None:
    """What tells this namespace from an earlier one of the same name; None: there is none."""
    path = os.path.join(ROOT, name)
    try:
        found = os.stat(path)
        # A leftover mount point is a plain file of the surrounding file system.
        if found.st_dev == os.stat(ROOT).st_dev:
            return None
    except OSError:
        return None
    return found.st_dev, found.st_ino


def call(name: str, function: Callable[[], T]) -> T:
    """Run ``function`` inside a namespace: sockets it makes and processes it starts belong there.

    Runs in a short-lived thread, so the caller's own namespace never changes. Raises OSError when
    the namespace cannot be entered, and whatever the function raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            _enter(name)
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name=f"netns {name}", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(name: str) -> None:
    # os.setns exists from Python 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(os.path.join(ROOT, name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter namespace {name}: {os.strerror(number)}")
    finally:
        os.close(handle)
