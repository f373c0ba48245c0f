"""nova-scheduler: one process that answers requests, follows the fleet and sends heartbeats."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nova import bus, context
from nova.conf import CONF
from nova.rpcapi import SCHEDULER, by_hosts
from nova.rpcapi.scheduler import Scheduler
from nova.scheduler.follow import Follower
from nova.scheduler.hosts import Fleet
from nova.scheduler.manager import SchedulerManager, load_filters, load_weighers
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.select import Planner
from nova.service import liveness
from nova.service.periodic import Periodic
from nova.service.run import Drain
from nova.telemetry import metrics

if TYPE_CHECKING:  # at run time, nova.bus must be the first module that imports oslo_messaging
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

BINARY = "nova-scheduler"
SERVICE_VERSION = 1  # version of the service, sent in heartbeats, to distinguish releases

_PAGE = 500  # number of nodes that a scheduler reads from a conductor in one request


class SchedulerService:
    """The scheduler of one process. stop() drains it. ``worker``: number of the process on its host; the first process
    sends heartbeats. Raises PluginError if the configuration names an unknown plugin."""

    def __init__(self, transport: messaging.RPCTransport, worker: int = 0, host: str | None = None) -> None:
        self.host = host or CONF.host
        self._transport, self._worker = transport, worker
        self.fleet = fleet = Fleet(CONF.default_availability_zone)
        metrics.SCHEDULER_NODES.watch(lambda: len(fleet))
        conductor = bus.client(transport, by_hosts.Fleet)
        self._follower = Follower(fleet, lambda marker: conductor.page(context.admin(), marker, _PAGE))
        self.manager = SchedulerManager(fleet, Planner(load_filters(), load_weighers()), self._follower,
                                        SchedulerOptions.from_conf(CONF))
        own = liveness.Liveness(liveness.heartbeat_client(transport), self.host, BINARY, SCHEDULER, SERVICE_VERSION,
                                worker)
        self._beats = Periodic("heartbeat", CONF.report_interval, own.beat)
        self._server: messaging.RPCServer | None = None

    def start(self) -> None:
        """Start; return when requests are accepted. Requests wait for the first read of the fleet."""
        # Listen first: a delta between the read and the start of listening would be lost unnoticed.
        self._server = bus.serve(self._transport, SCHEDULER, f"{self.host}:{self._worker}", [(Scheduler, self.manager)])
        self._follower.start()
        self._beats.start()
        LOG.info("nova-scheduler is ready")

    def stop(self) -> None:
        """Stop accepting requests and finish those in progress within graceful_shutdown_timeout."""
        if self._server is not None:
            bus.stop_taking(self._server)
            Drain().wait(self._server.wait)
        self._beats.stop()
        self._follower.stop()
