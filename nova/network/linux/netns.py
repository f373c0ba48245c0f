"""Network namespaces: identification, and execution of functions in a namespace."""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ROOT = "/run/netns"
CLONE_NEWNET = 0x40000000


def identity(name: str) -> tuple[int, int] | None:
    """Return device and inode of a namespace, which identify it, or None if it is missing."""
    path = os.path.join(ROOT, name)
    try:
        status = os.stat(path)
        # A leftover mount point is a plain file of the surrounding file system.
        if status.st_dev == os.stat(ROOT).st_dev:
            return None
    except OSError:
        return None
    return status.st_dev, status.st_ino


def call(name: str, function: Callable[[], T]) -> T:
    """Run ``function`` in a namespace, to which its sockets and child processes belong, and return its result. A
    short-lived thread runs the function, so that the namespace of the caller does not change. Raises OSError if the
    namespace cannot be entered, and all exceptions of the function."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            # os.setns exists from Python 3.12 on.
            libc = ctypes.CDLL(None, use_errno=True)
            handle = os.open(os.path.join(ROOT, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(handle, CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, f"cannot enter namespace {name}: {os.strerror(number)}")
            finally:
                os.close(handle)
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name=f"netns {name}", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
