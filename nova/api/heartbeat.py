"""That nova-api lives and what it does: for operators only, os-services never shows it."""

from __future__ import annotations

from nova import bus, context, exception, load
from nova.api.clients import Clients
from nova.conf import CONF
from nova.periodic import Periodic
from nova.rpcapi.engine import Heartbeat as Conductor

BINARY = "nova-api"
SERVICE_VERSION = 1


class Heartbeat:
    """Of one worker process; the first one speaks for all."""

    def __init__(self, clients: Clients, worker: int) -> None:
        self._clients = clients
        self._worker = worker
        self._conductor: Conductor | None = None
        self._beats = Periodic("heartbeat", CONF.report_interval, self._beat)

    def start(self) -> None:
        self._beats.start()

    def stop(self) -> None:
        """Does not wait for a message under way: nobody misses it."""
        self._beats.cancel()

    def _beat(self) -> None:
        loads = load.report(self._worker)
        if self._worker:
            return
        if self._conductor is None:
            self._conductor = bus.client(self._clients.transport(), Conductor)
        try:
            self._conductor.beat(context.admin(), CONF.host, BINARY, [], loads)
        except exception.HostBinaryNotFound:
            self._conductor.register(context.admin(), CONF.host, BINARY, "api", SERVICE_VERSION)
