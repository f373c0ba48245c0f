"""Registration and heartbeats of a service, the same for all services."""

from typing import Any

from nova import bus, context, exception
from nova.conf import CONF
from nova.rpcapi.by_hosts import Heartbeat
from nova.telemetry import worker_stats


def heartbeat_client(transport: Any) -> Heartbeat:
    """Return a client that sends heartbeats to any conductor. The timeout of a call is a small part of
    service_down_time, so that :func:`nova.bus.retry_once` reaches another conductor if the first is frozen."""
    return bus.within(bus.client(transport, Heartbeat), min(5.0, max(1.0, CONF.service_down_time / 12)))


class Liveness:
    """The registration and the heartbeats of one worker process of a service on ``host``. Only the first worker (number
    0) sends them, for all workers. It registers the service before the first heartbeat, and again if an operator
    deleted the service while it runs."""

    def __init__(self, registry: Heartbeat, host: str, binary: str, topic: str, version: int, worker: int) -> None:
        self._registry = registry
        self._host, self._binary, self._topic, self._version = host, binary, topic, version
        self._worker = worker
        self._registered = False

    def register(self) -> None:
        """Register the service. Raises ServiceUnavailable if no conductor answers."""
        if not self._worker:
            self._registry.register(context.admin(), self._host, self._binary, self._topic, self._version)
            self._registered = True

    def beat(self) -> None:
        """Send a heartbeat with the statistics of the workers. Raises ServiceUnavailable if no conductor answers."""
        stats = worker_stats.report(self._worker)
        if self._worker:
            return
        if not self._registered:
            self.register()
        try:
            bus.retry_once(lambda: self._registry.beat(context.admin(), self._host, self._binary, [], stats))
        except exception.HostBinaryNotFound:
            self.register()
