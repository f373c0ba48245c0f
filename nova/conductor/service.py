"""The conductor service: database access, execution of operations, recovery."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import os
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nova import bus, context, exception
from nova.conductor.background import drains, migrations, overdue, precaches, share_accesses, text_index, usage_audit
from nova.conductor.background.sender import sending
from nova.conductor.core import Core
from nova.conductor.endpoints import accounts, by_hosts, hosts, networks, placement, servers, volumes
from nova.conductor.endpoints.derived import endpoints_of, interface_of
from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.conductor.feeds.feed import UsageFeed
from nova.conductor.resources import volume_removals
from nova.conductor.saga.engine import Engine
from nova.conductor.secret_cipher import SecretCipher
from nova.conductor.service_events import MissedEvents
from nova.conf import CONF
from nova.db.hosts import services
from nova.db.maintenance import outbox, overview
from nova.db.servers import actions
from nova.db.servers import consoles as console_tokens
from nova.db.sql import clock
from nova.db.sql.engine import Database
from nova.objects.base import new_uuid
from nova.rpcapi import CONDUCTOR, HEARTBEATS, REPORTS
from nova.rpcapi import by_hosts as by_hosts_api
from nova.rpcapi.compute import Compute
from nova.rpcapi.scheduler import Scheduler
from nova.service.liveness import Liveness
from nova.service.periodic import Periodic
from nova.service.process import workers_of
from nova.service.run import Drain
from nova.telemetry import metrics

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

# Release of a conductor, reported in heartbeats, so that conductors detect older ones in a rolling upgrade. Conductors
# maintain the text index of servers since 2, and can read blocks of the index compressed by Zstandard since 3.
SERVICE_VERSION = 3

_HEARTBEAT_THREADS = 4  # threads that process heartbeats; a heartbeat needs one or two statements
# Connections for heartbeats only, so that hosts do not count as down while other transactions wait for locks.
_HEARTBEAT_CONNECTIONS = 2
_TOKENS = 60  # seconds between two deletions of expired console tokens
_DAY = 24 * 3600.0
_RESCUED = 60  # seconds between two checks for servers that have been in rescue for too long
_CONNECTIONS = 40  # maximum number of database connections of all workers of a conductor


def open_database(connections: int | None = None, at_once: int | None = None, statement_seconds: int = 0,
                  queue: str | None = None) -> Database:
    """Return the configured database with a pool of ``connections``. Call after forking. Arguments: see Database."""
    size, overflow = (connections, 0) if connections else (CONF.database.max_pool_size, CONF.database.max_overflow)
    return Database(CONF.database.connection, size or connections_of(workers_of(CONF.conductor.workers)), overflow,
                    CONF.database.connection_recycle_time, CONF.database.max_retries, at_once, statement_seconds, queue)


def check_keys() -> None:
    """Check that this conductor can encrypt passwords and decrypt the stored ones. Raises SecretKeyUnusable."""
    with contextlib.closing(open_database(1)) as db:
        SecretCipher(CONF.conductor.secret_key_file).check(db)


def connections_of(workers: int) -> int:
    return max(4, _CONNECTIONS // workers - _HEARTBEAT_CONNECTIONS)


class IsolationGuard:
    """A guard that allows a conductor to consider hosts down only while the conductor receives heartbeats. At the start
    and after an interruption the conductor first waits service_down_time, so that every host can report."""

    def __init__(self) -> None:
        self.connected = True
        clock.start_grace_period()

    @property
    def may_judge_hosts(self) -> bool:
        return self.connected and not clock.in_grace_period()

    def check(self, latest_heartbeat: datetime.datetime | None) -> None:
        """Update the state with the time of the latest heartbeat that any service sent by message, or None."""
        if not clock.steady(CONF.service_down_time):
            return  # keep the state: the clock was set, so the age of the heartbeat is unknown
        connected = latest_heartbeat is None or clock.after(-CONF.service_down_time / 2) < latest_heartbeat
        if connected != self.connected:
            LOG.warning("Heartbeats arrive again; hosts can be considered down in %d s" if connected else
                        "No heartbeat of any service arrives: check the broker. No host is considered down meanwhile "
                        "(service_down_time: %d s)", CONF.service_down_time)
        self.connected = connected
        if not connected:
            clock.start_grace_period()


class ConductorService:
    """The service of a conductor process; stop() waits for the requests in progress."""

    def __init__(self, transport: messaging.RPCTransport, worker: int = 0) -> None:
        self.host = CONF.host
        self._worker = worker
        name = f"conductor@{CONF.host}:{os.getpid()}:{new_uuid()[:8]}"
        db = open_database(at_once=CONF.conductor.transactions, statement_seconds=CONF.database.statement_timeout)
        scheduler_proxy = bus.client(transport, Scheduler)
        announcer = FleetAnnouncer(scheduler_proxy, name)
        self.core = Core(
            name=name, db=db, transport=transport, scheduler=scheduler_proxy,
            compute=bus.client(transport, Compute), fleet=announcer, usage=UsageFeed(db, announcer))
        self.engine = Engine(self.core)
        self._beats_db = open_database(_HEARTBEAT_CONNECTIONS, statement_seconds=CONF.database.statement_timeout,
                                       queue="heartbeats")
        self._heartbeat = by_hosts.Heartbeat(dataclasses.replace(self.core, db=self._beats_db))
        self._liveness = Liveness(self._heartbeat, self.host, "nova-conductor", CONDUCTOR, SERVICE_VERSION, worker)
        self._isolation_guard = IsolationGuard()
        core, engine, interval = self.core, self.engine, CONF.conductor.recovery_interval
        self._recovery = Periodic("recovery", interval, self._recover)
        self.periodic = [
            Periodic("heartbeat", CONF.report_interval, self._beat),
            self._recovery,
            Periodic("migrations", interval, lambda: migrations.run_periodic(core, engine)),
            Periodic("reclaim", interval, lambda: overdue.reclaim(core, engine)),
            Periodic("drains", interval, lambda: drains.run_periodic(core, engine)),
            Periodic("precaches", interval, lambda: precaches.run_periodic(core)),
            Periodic("shelved", CONF.shelved_poll_interval, lambda: overdue.offload(core, engine)),
            Periodic("rescued", _RESCUED, lambda: overdue.unrescue(core, engine)),
            Periodic("text index", text_index.INTERVAL, text_index.Maintenance(db).run),
            Periodic("consoles", _TOKENS, lambda: db.write(console_tokens.forget_expired)),
            Periodic("volumes", CONF.volume.removal_interval, lambda: volume_removals.remind(core))]
        if core.allocator.external and CONF.heal_instance_info_cache_interval > 0:
            self.periodic.append(Periodic("missed events", _DAY, MissedEvents(core, engine).run,
                                          retry=CONF.heal_instance_info_cache_interval))
        if CONF.share.driver != "none":
            self.periodic.append(Periodic("shares of deleted servers", interval,
                                          lambda: share_accesses.close_deleted(core)))
        if CONF.stale_share_access_reconcile_interval:
            self.periodic.append(Periodic("share accesses", CONF.stale_share_access_reconcile_interval,
                                          lambda: share_accesses.reconcile(core)))
        if core.outbox.on:
            self.periodic.append(sending(core))
            if CONF.instance_usage_audit:
                self.periodic.append(Periodic("usage audit", usage_audit.INTERVAL, lambda: usage_audit.audit(core)))
        if metrics.on:
            self.periodic.append(Periodic("metrics", CONF.prometheus.interval, lambda: update_gauges(db)))
        self._servers: list[messaging.RPCServer] = []
        implementations: list[bus.Interface] = [
            self._heartbeat, by_hosts.EngineReports(engine, self._recovery.wake), by_hosts.Guests(core, engine),
            servers.Servers(core, engine), servers.ExternalEvents(engine),
            *(kind(core) for kind in endpoints_of(accounts, by_hosts, hosts, networks, placement, servers, volumes))]
        self.endpoints: list[tuple[type[bus.Interface], Any]] = [
            (interface_of(endpoint), endpoint) for endpoint in implementations]

    def start(self) -> None:
        """Start the service; return when it serves requests."""
        core = self.core
        core.db.read(clock.synchronize)
        self._liveness.register()
        for feed in (core.usage, core.peers, core.names, core.filters):
            feed.start()
        threads = {REPORTS: CONF.conductor.report_threads, HEARTBEATS: _HEARTBEAT_THREADS}
        for topic in (HEARTBEATS, REPORTS, CONDUCTOR):
            pollers = [(declared, made) for declared, made in self.endpoints
                       if topic in (declared.topic, declared.former_topic)]
            self._servers.append(bus.serve(core.transport, topic, f"{self.host}:{self._worker}", pollers,
                                           threads=threads.get(topic)))
        for thread in self.periodic:
            thread.start()
        LOG.info("nova-conductor is ready")

    def stop(self) -> None:
        """Refuse new requests, finish running ones within graceful_shutdown_timeout, and hand over the rest."""
        drain = Drain()
        heartbeat, *others = self.periodic
        for thread in others:
            thread.stop()
        bus.stop_taking(*self._servers)
        for server in self._servers:
            drain.wait(server.wait)
        drain.wait(self.engine.stop)
        heartbeat.stop()
        self._hand_over()
        for feed in (self.core.usage, self.core.peers, self.core.names, self.core.filters):
            feed.stop()
        self.core.db.close()
        self._beats_db.close()

    def _hand_over(self) -> None:
        """Release the leases, so that other conductors continue the operations immediately."""
        left = self.core.db.write(lambda connection: actions.hand_over(connection, self.core.name))
        if not left:
            return
        LOG.info("Released the leases of %d operations to other conductors", left)
        try:
            bus.client(self.core.transport, by_hosts_api.Engine).handed_over(context.admin())
        except exception.ServiceUnavailable as error:
            LOG.warning("Cannot notify other conductors of released operations, which wait for the next check of "
                        "expired leases: %s", error)

    # --- periodic ----------------------------------------------------------------------------------
    def _beat(self) -> None:
        """Renew the leases of this process; in one worker, also send the heartbeat of the service."""
        self.core.db.read(clock.synchronize)
        self.engine.renew()
        self._liveness.beat()

    def _recover(self) -> None:
        """Mark services without heartbeats as down, and take over expired leases."""
        self._isolation_guard.check(self.core.db.read(_last_heard))
        silent = self.core.db.write(services.mark_down) if self._isolation_guard.may_judge_hosts else ()
        if silent:
            LOG.warning("No heartbeat from these hosts, scheduling no servers to them: %s", ", ".join(silent))
            self.core.fleet.services(self.core.db.read(lambda connection: services.flags(connection, silent)))
        # Leases appear to be expired after a clock jump until their owners have renewed them.
        if clock.steady(CONF.conductor.lease):
            self.engine.recovery.recover(reach_hosts=self._isolation_guard.connected,
                                         judge_hosts=self._isolation_guard.may_judge_hosts)


def _last_heard(connection: sa.Connection) -> datetime.datetime | None:
    """Return the time of the newest heartbeat, after synchronizing the clock that its age is computed with."""
    clock.synchronize(connection)
    return services.last_heard(connection)


def update_gauges(db: Database) -> None:
    """Set the gauges of the deployment, counted in the database: every conductor reports the same values."""
    now = clock.now()
    operations, services_by_state, waiting = db.read(lambda connection: (
        overview.operations_by_state(connection, now), overview.services_by_state(connection),
        outbox.waiting(connection)))
    metrics.UNFINISHED.replace(operations)
    metrics.SERVICES.replace(services_by_state)
    metrics.NOTIFICATIONS_WAITING.set(waiting)
