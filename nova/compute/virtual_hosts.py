"""Many virtual hosts in one nova-compute: each a service of its own, with shared threads and a shared heartbeat."""

from __future__ import annotations

import concurrent.futures
import logging
from typing import TYPE_CHECKING

from nova import bus, context
from nova.compute import gauges
from nova.compute.runner import TICK, order_pool
from nova.compute.service import BINARY, ComputeService, hosts_of_driver, machine_of
from nova.conf import CONF
from nova.service import liveness
from nova.service.periodic import Periodic

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

# Hosts that start side by side, and that stop: this is nearly all waiting.
_STARTING = 16
_STOPPING = 100


def compute_of(transport: messaging.RPCTransport) -> ComputeService | VirtualHosts:
    """What nova-compute runs: the service of this host, or of all hosts that its driver plays."""
    drivers = hosts_of_driver()
    if not drivers:
        return ComputeService(transport)
    pool = order_pool()
    return VirtualHosts(transport, [ComputeService(transport, driver.host, machine_of(driver), pool)
                                    for driver in drivers])


class VirtualHosts:
    """The computes of many hosts: start(), stop() drains."""

    def __init__(self, transport: messaging.RPCTransport, services: list[ComputeService]) -> None:
        self.services = services
        self._heartbeat = liveness.heartbeat_client(transport)
        self.periodic = [
            Periodic("heartbeat", CONF.report_interval, self._beat),
            Periodic("inventory", CONF.update_resources_interval, self._report_nodes),
            Periodic("deadlines", TICK, self._look_at_deadlines),
        ]
        if CONF.sync_power_state_interval >= 0:
            self.periodic.append(Periodic("guests", max(CONF.sync_power_state_interval, 1), self._compare))
        self.periodic += gauges.watch([(service.runner, service.machine.driver) for service in services])

    def start(self) -> None:
        """Returns when every host takes orders and can be scheduled to."""
        beats, *others = self.periodic
        started: list[ComputeService] = []
        with concurrent.futures.ThreadPoolExecutor(_STARTING) as pool:
            for service in pool.map(_begin, self.services):
                started.append(service)
                # The first hosts must not count as silent while the last ones start.
                if len(started) % 50 == 0:
                    self._beat_for(started)
        beats.start()
        for thread in others:
            thread.start()
        LOG.info("nova-compute is ready with %d hosts", len(self.services))

    def stop(self) -> None:
        """Take no new orders and finish the steps under way."""
        with concurrent.futures.ThreadPoolExecutor(_STOPPING) as pool:
            # All of them first: they share the threads that end with the first one.
            list(pool.map(ComputeService.stop_taking, self.services))
            list(pool.map(ComputeService.stop, self.services))
        for thread in self.periodic:
            thread.stop()

    def _beat(self) -> None:
        self._beat_for(self.services)

    def _beat_for(self, services: list[ComputeService]) -> None:
        """One message for all."""
        running = {service.host: service.runner.running() for service in services}
        unknown = set(bus.retry_once(lambda: self._heartbeat.beat_all(context.admin(), BINARY, running)))
        for service in services:
            if service.host in unknown:
                service.returned()
            service.heard()

    def _report_nodes(self) -> None:
        for service in self.services:
            service.report_nodes()

    def _look_at_deadlines(self) -> None:
        for service in self.services:
            service.runner.look_at_deadlines()

    def _compare(self) -> None:
        for service in self.services:
            service.reconciler.compare()


def _begin(service: ComputeService) -> ComputeService:
    service.begin()
    return service
