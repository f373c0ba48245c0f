"""Running a service: configuration, workers, signals."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nova import bus, conf  # isort: skip  (first: it chooses oslo.service's threading back end)

import cotyledon
import oslo_messaging as messaging

# Seconds that a service has to finish what it is doing when it is told to stop.
DRAIN = 90


class Service(Protocol):
    """What a worker process runs."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def workers_of(configured: int | None) -> int:
    """The number of worker processes: as configured, else one per CPU, at most 8."""
    return configured or min(os.cpu_count() or 1, 8)


def run(name: str, make: Callable[[messaging.RPCTransport, int], Service],
        workers: Callable[[], int] = lambda: 1, argv: Sequence[str] | None = None) -> int:
    """Read the configuration and run ``workers()`` processes of a service until SIGTERM.

    ``make`` is called in the worker, after the fork, with the bus and the number of the worker.
    """
    conf.load(sys.argv[1:] if argv is None else argv)
    manager = cotyledon.ServiceManager(graceful_shutdown_timeout=DRAIN)
    manager.add(_worker(name, make), workers=workers())
    manager.run()
    return 0


def _worker(name: str, make: Callable[[messaging.RPCTransport, int], Service]) -> type[cotyledon.Service]:
    class Worker(cotyledon.Service):
        def __init__(self, worker_id: Any) -> None:
            super().__init__(worker_id)
            self._id = worker_id
            self._service: Service | None = None

        def run(self) -> None:
            self._service = make(bus.connect(conf.CONF), self._id)
            self._service.start()

        def terminate(self) -> None:
            if self._service is not None:
                self._service.stop()

    Worker.name = name
    return Worker


