"""The libvirt driver of a host in its own process, called over a socket, as two hosts need two configurations.

::

    python -m tests.integration.libvirt.driver_host SOCKET HOST OPTIONS

OPTIONS is JSON: {group: {option: value}}, "" for [DEFAULT].
"""

from __future__ import annotations

import json
import operator
import os
import sys
import threading
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from nova import exception
from nova.conf import CONF, register
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import MigrationProgress, MigrationTarget
from nova.virt.images.imagecache import ImageCache

_KEY = b"tests"


class _Host:
    """The methods that a remote driver offers: methods of the driver, and helpers of the tests."""

    def __init__(self, name: str) -> None:
        from nova.virt.libvirt.driver import LibvirtDriver

        self.driver = LibvirtDriver(name)
        self.driver.start(lambda status: None)
        self.cancelled = threading.Event()
        self.seen: list[MigrationProgress] = []

    def cache_image(self, source: str, name: str) -> str:
        """Put an image into the cache as if it had been downloaded."""
        import shutil

        return ImageCache().adopt(name, lambda path: shutil.copyfile(source, path) and None, os.stat(source).st_size)

    def live_migrate(self, instance: Instance, target: MigrationTarget) -> None:
        self.cancelled.clear()
        self.seen.clear()
        self.driver.live_source.migrate(instance, target, self.seen.append, self.cancelled)

    def cancel(self) -> None:
        self.cancelled.set()

    def progress(self) -> list[MigrationProgress]:
        return list(self.seen)


class RemoteDriver:
    """A proxy for a driver, or for an attribute or method of the driver. Thread-safe."""

    def __init__(self, path: str, verb: str = "") -> None:
        self._path, self._verb = path, verb

    def __getattr__(self, name: str) -> RemoteDriver:
        return RemoteDriver(self._path, f"{self._verb}.{name}".lstrip("."))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Client(self._path, "AF_UNIX", authkey=_KEY) as connection:
            connection.send((self._verb, args, kwargs))
            outcome, *values = connection.recv()
        if outcome == "error":
            raise exception.NovaException.rebuild(*values)
        return values[0]


def _answer(host: _Host, connection: Connection) -> None:
    with connection:
        verb, args, kwargs = connection.recv()
        try:
            known = getattr(host, verb, None) or operator.attrgetter(verb)(host.driver)
            connection.send(("ok", known(*args, **kwargs)))
        except exception.NovaException as error:
            connection.send(("error", type(error).__name__, error.message, error.kwargs))
        except Exception as error:
            connection.send(("error", "NovaException", f"{type(error).__name__}: {error}", {}))


def main() -> None:
    path, name, options = sys.argv[1:]
    register(CONF)
    for group, values in json.loads(options).items():
        for option, value in values.items():
            CONF.set_override(option, value, group or None)
    host = _Host(name)
    with Listener(path, "AF_UNIX", authkey=_KEY) as listener:
        while True:
            connection = listener.accept()
            threading.Thread(target=_answer, args=(host, connection), daemon=True).start()


if __name__ == "__main__":
    main()
