"""A conductor: answers for the database, walks operations, and finds what got lost."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from nova import bus, context, exception, metrics
from nova.conductor.core import Core
from nova.conductor.endpoints import (
    aggregates,
    flavors,
    fleet,
    guests,
    heartbeat,
    hypervisors,
    keypairs,
    networks,
    quotas,
    security_groups,
    server_groups,
    servers,
    services,
    zones,
)
from nova.conductor.engine import Engine
from nova.conductor.fleet import FleetPublisher
from nova.conductor.gauges import Gauges
from nova.conductor.hearing import Hearing
from nova.conductor.usage import UsageFeed
from nova.conf import CONF
from nova.db import actions, clock
from nova.db import services as service_rows
from nova.db.engine import Database
from nova.drain import Drain
from nova.liveness import Liveness
from nova.objects.base import new_uuid
from nova.periodic import Periodic
from nova.rpcapi import CONDUCTOR, compute, engine, hosts, scheduler
from nova.rpcapi import flavors as flavors_api
from nova.rpcapi import keypairs as keypairs_api
from nova.rpcapi import networks as networks_api
from nova.rpcapi import quotas as quotas_api
from nova.rpcapi import servers as servers_api

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

# Services say in their heartbeat which release they are, so that mixed ones can be told apart.
SERVICE_VERSION = 1


def open_database() -> Database:
    """The database of the configuration; one pool per process, opened after the fork."""
    return Database(CONF.database.connection, CONF.database.max_pool_size, CONF.database.max_overflow,
                    CONF.database.connection_recycle_time, CONF.database.max_retries)


class ConductorService:
    """One conductor process's worth: start(), stop() drains."""

    def __init__(self, transport: messaging.RPCTransport, worker: int = 0) -> None:
        self.host = CONF.host
        self._worker = worker
        name = f"conductor@{CONF.host}:{os.getpid()}:{new_uuid()[:8]}"
        db = open_database()
        scheduler_proxy = bus.client(transport, scheduler.Scheduler)
        publisher = FleetPublisher(scheduler_proxy, name)
        self.core = Core(
            name=name, db=db, transport=transport, scheduler=scheduler_proxy,
            compute=bus.client(transport, compute.Compute), fleet=publisher, usage=UsageFeed(db, publisher))
        self.engine = Engine(self.core)
        self._heartbeat = heartbeat.Heartbeat(self.core)
        self._liveness = Liveness(self._heartbeat, self.host, "nova-conductor", CONDUCTOR, SERVICE_VERSION, worker)
        self._hearing = Hearing()
        self.periodic = [
            Periodic("heartbeat", CONF.report_interval, self._beat),
            Periodic("recovery", CONF.conductor.recovery_interval, self._recover),
        ]
        if metrics.on:
            self.periodic.append(Periodic("metrics", CONF.prometheus.interval, Gauges(db).look))
        self._server: messaging.RPCServer | None = None
        self.endpoints = self._endpoints()

    def _endpoints(self) -> list[tuple[type[bus.Interface], Any]]:
        """Every interface that conductors answer, with its implementation."""
        core = self.core
        return [
            (servers_api.Servers, servers.Servers(core, self.engine)),
            (servers_api.Actions, servers.Actions(core)),
            (flavors_api.Flavors, flavors.Flavors(core)),
            (keypairs_api.Keypairs, keypairs.Keypairs(core)),
            (quotas_api.Quotas, quotas.Quotas(core)),
            (hosts.Services, services.Services(core)),
            (hosts.Hypervisors, hypervisors.Hypervisors(core)),
            (hosts.Zones, zones.Zones(core)),
            (hosts.Aggregates, aggregates.Aggregates(core)),
            (hosts.ServerGroups, server_groups.ServerGroups(core)),
            (networks_api.Networks, networks.Networks(core)),
            (networks_api.SecurityGroups, security_groups.SecurityGroups(core)),
            (engine.Engine, guests.EngineReports(self.engine, self.periodic[1].wake)),
            (engine.Heartbeat, self._heartbeat),
            (engine.Guests, guests.Guests(core, self.engine)),
            (engine.Fleet, fleet.Fleet(core)),
        ]

    def start(self) -> None:
        """Returns when requests are answered."""
        core = self.core
        core.db.read(clock.ask)
        self._liveness.register()
        core.usage.start()
        self._server = bus.serve(core.transport, CONDUCTOR, f"{self.host}:{self._worker}", self.endpoints)
        for thread in self.periodic:
            thread.start()
        LOG.info("nova-conductor is ready")

    def stop(self) -> None:
        """Take no new requests, finish what was begun within graceful_shutdown_timeout, hand over the rest."""
        drain = Drain()
        heartbeat, *others = self.periodic
        for thread in others:
            thread.stop()
        if self._server is not None:
            bus.stop_taking(self._server)
            drain.wait(self._server.wait)
        drain.wait(self.engine.stop)
        heartbeat.stop()
        self._hand_over()
        self.core.usage.stop()
        self.core.db.close()

    def _hand_over(self) -> None:
        """Another conductor goes on at once with what we did not come to, rather than when the leases end."""
        left = self.core.db.write(lambda connection: actions.hand_over(connection, self.core.name))
        if not left:
            return
        LOG.info("%d operations are handed over", left)
        try:
            bus.client(self.core.transport, engine.Engine).handed_over(context.admin())
        except exception.ServiceUnavailable as error:
            LOG.warning("They wait until a conductor looks for expired leases: %s", error)

    # --- periodic ----------------------------------------------------------------------------------
    def _beat(self) -> None:
        """Renew our own leases and, from one worker, the service's liveness."""
        self.core.db.read(clock.ask)
        self.engine.renew()
        self._liveness.beat()

    def _recover(self) -> None:
        """Silent services and expired leases; any conductor may find them first."""
        heard = self.core.db.read(service_rows.last_heard)
        self._hearing.look(heard)
        if self._hearing.may_judge:
            self._find_silent()
        self.engine.recover(context.admin(), reach_hosts=self._hearing.hears, judge_hosts=self._hearing.may_judge)

    def _find_silent(self) -> None:
        silent = self.core.db.write(lambda connection: service_rows.mark_down(
            connection, clock.after(-CONF.service_down_time)))
        if silent:
            LOG.warning("Hosts that stopped responding: %s", ", ".join(silent))
            self.core.fleet.services(self.core.db.read(lambda connection: service_rows.flags(connection, silent)))
