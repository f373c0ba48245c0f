"""That a service lives: what every service tells the conductor in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nova import bus, context, exception
from nova.conf import CONF
from nova.objects.service import WorkerStats
from nova.rpcapi.heartbeat import Heartbeat
from nova.telemetry import worker_stats


class Registry(Protocol):
    """Who is told: :class:`nova.rpcapi.heartbeat.Heartbeat`, or in a conductor what implements it."""

    def register(self, ctx: context.RequestContext, host: str, binary: str, topic: str, version: int) -> Any: ...
    def beat(self, ctx: context.RequestContext, host: str, binary: str, running: list[str],
             load: list[WorkerStats] | None = None) -> Sequence[str]: ...


def conductors(transport: Any) -> Heartbeat:
    """Who is told by message. One that is frozen delays a heartbeat by a fraction of service_down_time: with
    :func:`nova.bus.ask_again` it is another one's then.
    """
    return bus.within(bus.client(transport, Heartbeat), min(5.0, max(1.0, CONF.service_down_time / 12)))


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
        stats = worker_stats.report(self._worker)
        if self._worker:
            return
        if not self._registered:
            self.register()
        try:
            bus.ask_again(lambda: self._registry.beat(context.admin(), self._host, self._binary, [], stats))
        except exception.HostBinaryNotFound:
            self.register()
