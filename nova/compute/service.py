"""nova-compute: runs the steps of this host, reports its inventory, and reconciles its guests with the database. A
process may serve several virtual hosts, with shared threads and a shared heartbeat."""

from __future__ import annotations

import collections
import concurrent.futures
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nova import bus, context, exception, image
from nova.compute import identity
from nova.compute.disk_tools import QemuTools
from nova.compute.host import Machine
from nova.compute.monitors.base import Monitors, load
from nova.compute.precache import Precacher
from nova.compute.quiesce import QuiescedGuests
from nova.compute.reconcile import Reconciler
from nova.compute.reports import NodeReports, VolumeUsage
from nova.compute.runner import TICK, Runner, order_pool
from nova.conf import CONF
from nova.network.base import NoNetwork
from nova.objects.images.image import Image
from nova.objects.networks.network import GroupFilter, Peers, RuleSet, ServedDomain
from nova.objects.servers import states
from nova.objects.servers.console import MKS, PROTOCOLS, SERIAL, SPICE, SPICE_DIRECT, VNC, ConsoleAddress
from nova.objects.servers.guest import Diagnostics, GuestStatus
from nova.objects.servers.instance import Instance
from nova.objects.servers.order import StepOrder
from nova.objects.volumes.volume import VolumeRemoval
from nova.operations.framework.base import context_of, failure_of
from nova.rpcapi import COMPUTE, by_hosts, compute, volumes
from nova.service import liveness
from nova.service.fair_pool import FairThreadPool
from nova.service.periodic import Periodic
from nova.service.run import Drain
from nova.telemetry import metrics, worker_stats
from nova.virt.driver import Driver
from nova.virt.images.imagecache import ImageCache

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

BINARY = "nova-compute"
# Versions of the service: 2 supports security groups (refresh_groups). 3: rebuild, rescue, snapshots, shelving,
# passwords and crash dumps. 4: quiesce, volume swap, and switching guests to other volume files. 5: shares, and
# extension of attached volumes.
SERVICE_VERSION = 5

# Number of threads that receive messages per host, if a process serves many hosts. Few, since idle threads cost memory.
_SHARED_THREADS = 2


def machine_of(driver: Driver) -> Machine:
    """Return the back ends of this driver's host: network, images, volumes and shares as configured."""
    network = load("nova.network.drivers", CONF.network.driver) if driver.plugs_interfaces else NoNetwork
    return Machine(name=driver.host, driver=driver, network=network(),
                   images=image.store, cache=ImageCache(used=driver.disks.used_images),
                   volumes=load("nova.volume.drivers", CONF.volume.driver)(QemuTools()),
                   shares=load("nova.share.drivers", CONF.share.driver)())


def hosts_of_driver() -> Sequence[Driver]:
    """Return the drivers of all virtual hosts of the configured driver; empty if it serves the real host."""
    drivers: Sequence[Driver] = load("nova.virt.drivers", CONF.compute_driver).of_all_hosts()
    return drivers


def watch_gauges(hosts: Sequence[tuple[Runner, Driver]]) -> list[Periodic]:
    """Register metrics of steps and guests of these hosts; return their periodic tasks (none if metrics are off)."""
    if not metrics.on:
        return []
    metrics.ORDERS.watch(lambda: sum(len(runner.running()) for runner, _driver in hosts))

    def count_guests() -> None:
        counts = collections.Counter(guest.power_state for _runner, driver in hosts for guest in driver.guests.all())
        metrics.GUESTS.replace({(states.POWER_STATES.get(state, "unknown"),): number
                                for state, number in counts.items()})

    return [Periodic("metrics", CONF.prometheus.interval, count_guests)]


class ComputeService:
    """The compute service of one host. stop() drains it; guests keep running. ``pool``: threads shared by hosts."""

    def __init__(self, transport: messaging.RPCTransport, host: str | None = None,
                 machine: Machine | None = None, pool: FairThreadPool | None = None) -> None:
        self.host = host or CONF.host
        self.machine = machine or machine_of(load("nova.virt.drivers", CONF.compute_driver)(self.host))
        self._transport = transport
        self._shared = pool is not None
        self._engine = bus.client(transport, by_hosts.Engine)
        self._guests = bus.client(transport, by_hosts.Guests)
        self._heartbeat = liveness.heartbeat_client(transport)
        self._volumes = bus.client(transport, volumes.Volumes)
        self.runner = Runner(self.machine, self._engine, self._guests, pool)
        self.machine.network.connect(self.host, bus.client(transport, by_hosts.NetworkHosts))
        self._nodes = NodeReports(self.host, self.machine.driver, self._guests,
                                  Monitors.named(CONF.compute_monitors, self.machine.driver))
        self.reconciler = Reconciler(self.machine, self._guests, self.runner, self._nodes.assign)
        self._precacher = Precacher(self.machine, self._guests)
        self._quiesced_guests = QuiescedGuests(self.machine.driver.snapshots)
        self._last_beat = time.monotonic()
        self.periodic = [Periodic("heartbeat", CONF.report_interval, self._beat),
                         Periodic("inventory", CONF.update_resources_interval, self.report_nodes)]
        if CONF.sync_power_state_interval >= 0:
            self.periodic.append(Periodic("guests", max(CONF.sync_power_state_interval, 1), self.reconciler.compare))
        if CONF.image_cache.manager_interval >= 0 and self.machine.driver.needs_images:
            self.periodic.append(Periodic("images", max(CONF.image_cache.manager_interval, 1), lambda: (
                self.machine.cache.clean(set(self.machine.driver.disks.used_images())))))
        self.periodic += [Periodic("deadlines", TICK, self.runner.check_deadlines),
                          *watch_gauges([(self.runner, self.machine.driver)])]
        if self.machine.driver.needs_images:
            metrics.IMAGE_CACHE.watch(self.machine.cache.space.used)
            metrics.IMAGE_CACHE_LIMIT.watch(self.machine.cache.space.limit)
        if CONF.volume_usage_poll_interval:
            usage = VolumeUsage(self.machine, self._guests)
            self.periodic.append(Periodic("volume usage", CONF.volume_usage_poll_interval, usage.report))
        self._server: messaging.RPCServer | None = None
        self._taking = False

    def start(self) -> None:
        """Start the service; return when it accepts orders and schedulers can select the host."""
        self.begin()
        for thread in self.periodic:
            thread.start()
        LOG.info("nova-compute is ready on %s", self.host)

    def begin(self) -> None:
        """Start the service without its periodic tasks, which the caller runs."""
        ctx = context.admin()
        self.machine.driver.on_unreachable = self._hypervisor_lost
        self.machine.driver.start(self.reconciler.guest_changed)
        self.machine.volumes.start()
        bus.retry_until_available(self._register, "a conductor")
        bus.retry_until_available(self._nodes.assign, "a conductor")
        bus.retry_until_available(lambda: self.reconciler.start(ctx), "a conductor")
        self.reconciler.compare_later()
        # Resume orders before reading the message queue: resumed orders have newer attempts than those in the queue.
        for order in bus.retry_until_available(lambda: self._engine.resume(ctx, self.host), "a conductor"):
            self.runner.submit(context_of(order.action), order)
        self._server = bus.serve(self._transport, COMPUTE, self.host, [(compute.Compute, self)],
                                 threads=_SHARED_THREADS if self._shared else None)
        self._taking = True
        bus.retry_until_available(self.report_nodes, "a conductor")
        self.reconciler.resume_guests()

    def stop(self) -> None:
        """Stop accepting orders and finish the running ones within graceful_shutdown_timeout. Waiting orders continue
        after the restart, or on another host if this host does not return."""
        drain = Drain()
        self.stop_taking()
        drain.wait(self._quiesced_guests.stop)
        self.runner.stop(drain)
        for thread in self.periodic:
            thread.stop()
        self.reconciler.stop()
        self._precacher.stop()
        if self._server is not None:
            drain.wait(self._server.wait)
        self.machine.network.stop()
        self.machine.driver.stop()

    def stop_taking(self) -> None:
        """Stop accepting orders. A repeated call does nothing."""
        if self._taking:
            self._taking = False
            assert self._server is not None
            bus.stop_taking(self._server)

    # --- requests to this host (nova.rpcapi.compute.Compute) --------------------------------------
    def run(self, ctx: context.RequestContext, order: StepOrder) -> None:
        self.runner.submit(ctx, order)

    def interrupt(self, ctx: context.RequestContext, action_uuid: str, what: str) -> None:
        self.runner.interrupt(action_uuid, what)

    def console_output(self, ctx: context.RequestContext, instance: Instance, lines: int | None) -> str:
        return self.machine.driver.consoles.output(instance, lines).decode("utf-8", "replace")

    def console(self, ctx: context.RequestContext, uuid: str, console_type: str) -> ConsoleAddress:
        protocol = PROTOCOLS.get(console_type, "")
        options = {VNC: CONF.vnc, SPICE: CONF.spice, SERIAL: CONF.serial_console, MKS: CONF.mks}.get(protocol)
        address = self.machine.driver.consoles.address(uuid, protocol) if options and options.enabled else None
        # A console that has only a TLS port is for SPICE clients that connect directly.
        if address is None or not (address.port or console_type == SPICE_DIRECT):
            raise exception.ConsoleTypeUnavailable(console_type=console_type)
        return address

    def diagnostics(self, ctx: context.RequestContext, instance: Instance) -> Diagnostics:
        return self.machine.driver.guests.diagnostics(instance)

    def quiesce(self, ctx: context.RequestContext, instance: Instance) -> None:
        self._quiesced_guests.begin(instance)

    def unquiesce(self, ctx: context.RequestContext, instance: Instance) -> None:
        self._quiesced_guests.end(instance)

    def guests(self, ctx: context.RequestContext) -> list[GuestStatus]:
        return self.machine.driver.guests.all()

    def refresh_rules(self, ctx: context.RequestContext, uuid: str, rules: RuleSet) -> None:
        self.machine.network.refresh_rules(uuid, rules)

    def refresh_groups(self, ctx: context.RequestContext, filters: list[GroupFilter]) -> None:
        self.machine.network.refresh_groups(filters)

    def refresh_peers(self, ctx: context.RequestContext, peers: Peers) -> None:
        self.machine.network.refresh_peers(peers)

    def refresh_names(self, ctx: context.RequestContext, domains: list[ServedDomain]) -> None:
        self.machine.network.refresh_names(domains)

    def remove_volumes(self, ctx: context.RequestContext, removals: list[VolumeRemoval]) -> None:
        for removal in removals:
            self.machine.volumes.remove(removal)
        self._volumes.removed(ctx, removals)

    def cache_images(self, ctx: context.RequestContext, images: list[Image]) -> None:
        self._precacher.take(images)

    def reap(self, ctx: context.RequestContext, uuid: str) -> None:
        self.reconciler.reap(uuid)

    # --- periodic ----------------------------------------------------------------------------------
    def report_nodes(self) -> None:
        """Report inventories and traits if they changed. If this host took over nodes, also compare the guests."""
        if self._nodes.report():
            self.reconciler.compare()

    def _register(self) -> None:
        """Register the service. Raises HostIdentityMismatch if the database has this host name for another machine,
        another name for this machine, or another deployment id, or if [rpc]key_file is the key of another host."""
        key_host = bus.keys_of(self._transport).host
        if key_host not in ("", self.host):
            raise exception.HostIdentityMismatch(host=self.host, reason=f"[rpc]key_file is the key of host {key_host}")
        # A virtual host may be new although its machine is registered: operators can add virtual hosts later.
        virtual, belongs_to = self.machine.driver.virtual, identity.deployment()
        service = self._heartbeat.register(
            context.admin(), self.host, BINARY, COMPUTE, SERVICE_VERSION,
            identity.of_virtual_host(self.host) if virtual else identity.of_this_machine(),
            {**self.machine.volumes.connector(self.host), **self.machine.shares.connector(self.host),
             **self.machine.driver.connector()}, belongs_to,
            returning=bool(belongs_to and not virtual))
        if service.deployment is not None:  # None from a conductor of the previous release
            identity.join(service.deployment)
        self.runner.clock.learn(service.last_seen_up)

    def _beat(self) -> None:
        try:
            running, sent = self.runner.running(), time.monotonic()
            stats = worker_stats.report(0, len(running))
            lost = bus.retry_once(lambda: self._heartbeat.beat(context.admin(), self.host, BINARY, running, stats))
            self.runner.renewed(running, lost, sent)
        except exception.HostBinaryNotFound:
            self.returned()
        self.heartbeat_sent()

    def returned(self) -> None:
        """Register again after an operator deleted the record of this running service."""
        self._register()
        self._nodes.report(full=True)

    def heartbeat_sent(self) -> None:
        """Note a successful heartbeat; compare guests with the database if the previous heartbeat is too old."""
        now = time.monotonic()
        silent, self._last_beat = now - self._last_beat, now
        if silent > CONF.service_down_time / 2:
            LOG.warning("No heartbeat of this host reached a conductor for %.0f s: comparing its guests", silent)
            self.reconciler.heartbeat_resumed()

    def _hypervisor_lost(self, error: exception.NovaException) -> None:
        try:
            self._guests.hypervisor_lost(context.admin(), self.host, CONF.my_ip, failure_of(error, self.host))
        except exception.NovaException as away:
            LOG.warning("Cannot report to conductors that the hypervisor is unavailable: %s", away)


# Maximum number of virtual hosts of this process that start, and that stop, in parallel. Starts and stops mostly wait.
_STARTING = 16
_STOPPING = 100


def compute_of(transport: messaging.RPCTransport) -> ComputeService | VirtualHosts:
    """Return the service of all virtual hosts of the configured driver, or of this host if the driver has none."""
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
        """Start all hosts; return when each of them accepts orders and schedulers can select it."""
        beats, *others = self.periodic
        with concurrent.futures.ThreadPoolExecutor(_STARTING) as pool:
            for started, _none in enumerate(pool.map(ComputeService.begin, self.services), 1):
                # Send heartbeats for hosts that have started while other hosts are still starting.
                if started % 50 == 0:
                    self._beat_for(self.services[:started])
        beats.start()
        for thread in others:
            thread.start()
        LOG.info("nova-compute is ready with %d hosts", len(self.services))

    def stop(self) -> None:
        """Stop accepting orders and finish the running steps."""
        with concurrent.futures.ThreadPoolExecutor(_STOPPING) as pool:
            # Stop accepting orders on all hosts first, because the shared threads end when the first host stops.
            list(pool.map(ComputeService.stop_taking, self.services))
            list(pool.map(ComputeService.stop, self.services))
        for thread in self.periodic:
            thread.stop()

    def _beat_for(self, services: list[ComputeService]) -> None:
        running = {service.host: service.runner.running() for service in services}
        unknown = set(bus.retry_once(lambda: self._heartbeat.beat_all(context.admin(), BINARY, running)))
        for service in services:
            if service.host in unknown:
                service.returned()
            service.heartbeat_sent()

    def _for_all(self, call: Callable[[ComputeService], None]) -> None:
        for service in self.services:
            call(service)
