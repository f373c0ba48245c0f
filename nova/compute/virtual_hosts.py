"""Virtual hosts: several compute services in one nova-compute process, with shared threads and heartbeat."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from nova import bus, context
from nova.compute.runner import TICK, order_pool
from nova.compute.service import BINARY, ComputeService, hosts_of_driver, machine_of, watch_gauges
from nova.conf import CONF
from nova.service import liveness
from nova.service.periodic import Periodic

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

# Numbers of hosts that start, and that stop, at the same time. Most of that time is waiting.
_STARTING = 16
_STOPPING = 100


def compute_of(transport: messaging.RPCTransport) -> ComputeService | VirtualHosts:
    """Return the service to run: of this host, or of all virtual hosts of the driver."""
    drivers = hosts_of_driver()
    if not drivers:
        return ComputeService(transport)
    pool = order_pool()
    return VirtualHosts(transport, [ComputeService(transport, driver.host, machine_of(driver), pool)
                                    for driver in drivers])


class VirtualHosts:
    """The compute services of many virtual hosts. stop() drains them."""

    def __init__(self, transport: messaging.RPCTransport, services: list[ComputeService]) -> None:
        self.services = services
        self._heartbeat = liveness.heartbeat_client(transport)
        self.periodic = [
            Periodic("heartbeat", CONF.report_interval, lambda: self._beat_for(self.services)),
            Periodic("inventory", CONF.update_resources_interval, lambda: self._for_all(ComputeService.report_nodes)),
            Periodic("deadlines", TICK, lambda: self._for_all(lambda service: service.runner.check_deadlines()))]
        if CONF.sync_power_state_interval >= 0:
            self.periodic.append(Periodic("guests", max(CONF.sync_power_state_interval, 1), lambda: self._for_all(
                lambda service: service.reconciler.compare())))
        self.periodic += watch_gauges([(service.runner, service.machine.driver) for service in services])

    def start(self) -> None:
        """Start all hosts; return when each of them accepts orders and can be scheduled to."""
        beats, *others = self.periodic
        with concurrent.futures.ThreadPoolExecutor(_STARTING) as pool:
            for started, _none in enumerate(pool.map(ComputeService.begin, self.services), 1):
                # Send heartbeats for the first hosts while the last ones are still starting.
                if started % 50 == 0:
                    self._beat_for(self.services[:started])
        beats.start()
        for thread in others:
            thread.start()
        LOG.info("nova-compute is ready with %d hosts", len(self.services))

    def stop(self) -> None:
        """Stop accepting orders and finish the running steps."""
        with concurrent.futures.ThreadPoolExecutor(_STOPPING) as pool:
            # Stop accepting orders on all hosts first, because they share the threads that end with the first host.
            list(pool.map(ComputeService.stop_taking, self.services))
            list(pool.map(ComputeService.stop, self.services))
        for thread in self.periodic:
            thread.stop()

    def _beat_for(self, services: list[ComputeService]) -> None:
        """Send one heartbeat message for all hosts."""
        running = {service.host: service.runner.running() for service in services}
        unknown = set(bus.retry_once(lambda: self._heartbeat.beat_all(context.admin(), BINARY, running)))
        for service in services:
            if service.host in unknown:
                service.returned()
            service.heartbeat_sent()

    def _for_all(self, call: Callable[[ComputeService], None]) -> None:
        for service in self.services:
            call(service)
