"""That a service lives: what every service tells the conductor in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nova import context, exception, load
from nova.objects.compute import Load


class Registry(Protocol):
    """Who is told: :class:`nova.rpcapi.engine.Heartbeat`, or in a conductor what answers it."""

    def register(self, ctx: context.RequestContext, host: str, binary: str, topic: str, version: int) -> Any: ...
    def beat(self, ctx: context.RequestContext, host: str, binary: str, running: list[str],
             load: list[Load] | None = None) -> Sequence[str]: ...


class Liveness:
    """Of one worker process of a service on ``host``; the first worker speaks for all of them.

    It registers before the first sign of life, and again if an operator deleted the service while it runs.
    """

    def __init__(self, registry: Registry, host: str, binary: str, topic: str, version: int, worker: int) -> None:
        self._registry = registry
        self._host, self._binary, self._topic, self._version = host, binary, topic, version
        self._worker = worker
        self._registered = False

    def register(self) -> None:
        """Raises ServiceUnavailable when nobody could be told."""
        if not self._worker:
            self._registry.register(context.admin(), self._host, self._binary, self._topic, self._version)
            self._registered = True

    def beat(self) -> None:
        """Tell that the service lives, and what its workers do. Raises ServiceUnavailable."""
        loads = load.report(self._worker)
        if self._worker:
            return
        if not self._registered:
            self.register()
        try:
            self._registry.beat(context.admin(), self._host, self._binary, [], loads)
        except exception.HostBinaryNotFound:
            self.register()
