"""Endpoints that hosts and schedulers call: guests, heartbeats, reports of steps, networks and the fleet."""

import datetime
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.common import plain_ip
from nova.conductor import announcer
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, reads, write
from nova.conductor.feeds import host_notices
from nova.conductor.saga.engine import Engine
from nova.conductor.saga.run import owner_of
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.hosts import compute_nodes, network_hosts, precaches, services
from nova.db.networks import fixed_ips, floating_ip_dns, security_filters
from nova.db.servers import actions, evictions, server_migrations, servers
from nova.db.sql import clock
from nova.objects.hosts.node import ComputeNode
from nova.objects.hosts.scheduling import FleetPage
from nova.objects.hosts.service import Service, WorkerStats, check_connector
from nova.objects.images.image_cache import ENDS, CacheResult
from nova.objects.networks.network import Peers, RuleSet, ServedDomain
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.guest import PASSWORD_MAX, GuestStatus, Resumed, Whereabouts, password_items, password_of
from nova.objects.servers.instance import Instance, without_secrets
from nova.objects.servers.order import StepOrder, StepReport
from nova.objects.volumes.volume import VolumeCounters
from nova.operations.power import ResumeOnBoot, SyncPower, differs
from nova.rpcapi import COMPUTE
from nova.rpcapi import by_hosts as by_hosts_api

LOG = logging.getLogger(__name__)

_MESSAGE = 1000  # maximum length of a message from a host, in characters
_DETAILS, _ADDRESS = 10_000, 64  # maximum lengths of an error's traceback and of a host's address, in characters


class Guests(by_hosts_api.Guests):
    """Guest reports of compute hosts, and the expected state that hosts compare their guests with."""

    expected = reads(servers.expected)
    evictions = reads(evictions.of_host)

    def __init__(self, core: Core, engine: Engine) -> None:
        self.core, self.engine = core, engine

    def whereabouts(self, ctx: RequestContext, host: str, uuids: list[str]) -> list[Whereabouts]:
        guests = self.core.db.read(lambda connection: evictions.whereabouts(connection, host, uuids))
        for where in guests:
            # Do not disclose the names of other hosts to a host.
            where.possible_hosts = [possible for possible in where.possible_hosts if possible == host]
        return guests

    def on_host(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Instance]:
        instances = self.core.db.read(lambda connection: servers.on_host(connection, host, limit, marker))
        return [without_secrets(instance) for instance in instances]

    def described(self, ctx: RequestContext, uuids: list[str]) -> list[Instance]:
        instances = self.core.db.read(lambda connection: servers.get_many(connection, uuids, ctx.calling_host))
        return [without_secrets(instance) for instance in instances]

    def report_nodes(self, ctx: RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        return announcer.report_nodes(self.core, host, nodes, after, upto, trusted=not ctx.calling_host)

    def share_nodes(self, ctx: RequestContext, host: str, uuids: list[str]) -> list[str]:
        return announcer.share_nodes(self.core, host, uuids, trusted=not ctx.calling_host)

    def power_states(self, ctx: RequestContext, host: str, guests: list[GuestStatus]) -> None:
        reported = {guest.uuid: guest.power_state for guest in guests if guest.power_state in states.POWER_STATES}
        late = {guest.uuid for guest in guests if guest.late}

        def write(connection: sa.Connection) -> list[str]:
            wrong = []
            for instance in servers.get_many(connection, list(reported)):
                power_state = reported[instance.uuid]
                superseded = instance.uuid in late and instance.action_uuid is not None
                if instance.host != host or instance.task_state is not None or superseded:
                    continue  # keep the state: the running operation, or the one that superseded a late one, sets it
                unknown = instance.power_state == states.NOSTATE or instance.uuid in late
                vm_state = states.vm_state_of(instance.vm_state, power_state) if unknown else None
                if vm_state:
                    # An operation was given up because the host was down: take the server's state from the guest.
                    servers.update(connection, instance.uuid, {"power_state": power_state, "vm_state": vm_state})
                elif differs(instance.vm_state, power_state):
                    wrong.append(instance.uuid)
                elif instance.power_state != power_state:
                    servers.update(connection, instance.uuid, {"power_state": power_state})
            return wrong

        for uuid in self.core.db.write(write):
            if not self.core.host_rates.of_guest(host, uuid):
                continue
            LOG.info("[instance: %s] The power state of the guest changed to %d without an operation; starting an "
                     "operation that checks the guest and corrects the state", uuid, reported[uuid])
            try:
                # Use an admin context, so that a locked server is synchronized, too.
                start(self.engine, context.admin(), uuid, SyncPower.name, {})
            except exception.NovaException as error:
                LOG.info("[instance: %s] Operation %s was not started: %s", uuid, SyncPower.name, error)

    def resume(self, ctx: RequestContext, host: str, waiting: list[str], begun: list[str], at_once: int) -> Resumed:
        up, runnable = self.core.db.read(lambda connection: (
            services.host_up(connection, host), servers.runnable(connection, host, [*waiting, *begun])))
        busy = [uuid for uuid in begun if runnable.get(uuid)]
        left = []
        for uuid in waiting:
            if uuid not in runnable:
                continue
            if runnable[uuid] or len(busy) >= at_once or not up or not self.core.host_rates.of_guest(host, uuid):
                left.append(uuid)
            elif self._resumes(uuid, host):
                busy.append(uuid)
        return Resumed(waiting=left, begun=busy)

    def _resumes(self, uuid: str, host: str) -> bool:
        """Start the server after the boot of its host. Return True if the operation was accepted."""
        try:
            start(self.engine, context.admin(), uuid, ResumeOnBoot.name, {"host": host})
            return True
        except exception.NovaException as error:
            LOG.info("[instance: %s] The server is not started after the boot of its host: %s", uuid, error)
            return False

    def images_cached(self, ctx: RequestContext, host: str, results: list[CacheResult]) -> None:
        if any(result.state not in ENDS for result in results):
            raise exception.InvalidInput(reason="invalid result of an image caching request")
        truncated = [msgspec.structs.replace(result, message=result.message[:_MESSAGE]) for result in results]

        def write(connection: sa.Connection) -> None:
            done = precaches.ended(connection, host, truncated)
            self.core.outbox.notify(
                connection, ctx, lambda builder: host_notices.images_cached(connection, builder, done))

        self.core.db.write(write)

    def volumes_used(self, ctx: RequestContext, host: str, counters: list[VolumeCounters]) -> None:
        if not self.core.outbox.on:
            return
        newest = {(counter.instance_uuid, counter.volume_id): counter for counter in counters}
        admitted = self.core.host_rates.measured(host, newest.values())

        def write(connection: sa.Connection) -> None:
            instances = servers.get_many(connection, list({counter.instance_uuid for counter in admitted}), host)
            by_uuid = {instance.uuid: instance for instance in instances}
            self.core.outbox.notify(connection, context.admin(),
                                  lambda builder: host_notices.volumes_used(builder, host, by_uuid, admitted))

        self.core.db.write(write)

    def hypervisor_lost(self, ctx: RequestContext, host: str, address: str, failure: Failure) -> None:
        if not self.core.host_rates.lost(host):
            return
        LOG.warning("Host %s has lost its hypervisor connection: %s", host, failure.message[:_MESSAGE])
        short = msgspec.structs.replace(failure, message=failure.message[:_MESSAGE], kind=failure.kind[:_MESSAGE],
                                        details=failure.details[:_DETAILS])
        self.core.db.write(lambda connection: self.core.outbox.notify(
            connection, context.admin(),
            lambda builder: host_notices.hypervisor_lost(builder, host, address[:_ADDRESS], short)))

    def evicted(self, ctx: RequestContext, host: str, uuids: list[str],
                since: dict[str, datetime.datetime] | None = None) -> None:
        def write(connection: sa.Connection) -> None:
            if since is None:
                evictions.remove(connection, host, uuids)
            else:
                evictions.carried_out(connection, host, since)
            server_migrations.complete_evacuations(connection, host, uuids)

        self.core.db.write(write)
        LOG.info("Host %s removed %d evicted guests", host, len(uuids))

    def by_address(self, ctx: RequestContext, network_id: str, address: str) -> Instance:
        def read(connection: sa.Connection) -> Instance:
            uuid = fixed_ips.owner_of(connection, network_id, address)
            if uuid is None:
                raise exception.InstanceNotFound(instance_id=address)
            try:
                return servers.check_place(connection, servers.get(connection, uuid), ctx.calling_host)
            except exception.InstanceNotFound:
                raise exception.InstanceNotFound(instance_id=address) from None

        return without_secrets(self.core.db.read(read))

    def set_password(self, ctx: RequestContext, uuid: str, items: dict[str, str]) -> None:
        wanted = password_items(password_of(items)[:PASSWORD_MAX])

        def write(connection: sa.Connection) -> None:
            instance = servers.check_place(connection, servers.lock(connection, uuid), ctx.calling_host)
            if password_of(instance.system_metadata):
                raise exception.Conflict("The password is set already.")
            servers.update(connection, uuid, {"system_metadata": {**instance.system_metadata, **wanted}})

        self.core.db.write(write)


class Heartbeat(by_hosts_api.Heartbeat):
    """Service heartbeats, and renewal of the leases of their running operations."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def register(self, ctx: RequestContext, host: str, binary: str, topic: str, version: int,
                 identity: str | None = None, connector: dict[str, Any] | None = None,
                 belongs_to: str | None = None, returning: bool = False) -> Service:
        _check_binary(ctx, binary)
        if ctx.calling_host and topic != COMPUTE:
            raise exception.CallerRefused(f"Host {host} must not use the topic {topic}.")
        check_connector(connector)
        service = write(self.core, ctx, services.register, notifications.service_registered,
                        host, binary, topic, version, identity, connector, belongs_to, returning)
        LOG.info("%s on %s started", binary, host)
        announcer.publish_services(self.core, [(service, True)])
        return service

    def beat(self, ctx: RequestContext, host: str, binary: str, running: list[str],
             load: Sequence[WorkerStats] | None = None) -> list[str]:
        _check_binary(ctx, binary)
        owner = owner_of(host, binary)

        def transaction(connection: Any) -> tuple[Service | None, list[str]]:
            until = clock.after(CONF.conductor.lease)
            return (services.beat(connection, host, binary, load),
                    actions.renew(connection, owner, running, until) if running else [])

        returned, lost = self.core.db.write(transaction)
        if returned is not None:
            self._up_again([returned])
        return lost

    def beat_all(self, ctx: RequestContext, binary: str, running: dict[str, list[str]]) -> list[str]:
        _check_binary(ctx, binary)
        if ctx.calling_host and set(running) != {ctx.calling_host}:
            raise exception.CallerRefused(f"Host {ctx.calling_host} must not act for other hosts.")
        owners = {action: owner_of(host, binary) for host, held in running.items() for action in held}

        def transaction(connection: Any) -> tuple[list[Service], list[str]]:
            until = clock.after(CONF.conductor.lease)
            actions.renew_of(connection, owners, until)
            return services.beat_all(connection, list(running), binary)

        returned, unknown = self.core.db.write(transaction)
        if returned:
            self._up_again(returned)
        return unknown

    def _up_again(self, returned: list[Service]) -> None:
        LOG.info("%s on %s is up again", returned[0].binary, ", ".join(service.host for service in returned))
        announcer.publish_services(self.core, [(service, True) for service in returned])


def _check_binary(ctx: RequestContext, binary: str) -> None:
    """Raise CallerRefused if a compute host calls as a service of the control plane."""
    if ctx.calling_host and binary != services.COMPUTE:
        raise exception.CallerRefused(f"Host {ctx.calling_host} must not register {binary}.")


class EngineReports(by_hosts_api.Engine):
    def __init__(self, engine: Engine, check: Callable[[], None]) -> None:
        self.engine, self._check = engine, check

    def step_done(self, ctx: RequestContext, report: StepReport) -> None:
        self.engine.step_done(ctx, report)

    def progress(self, ctx: RequestContext, report: StepReport) -> None:
        self.engine.progress(ctx, report)

    def begin(self, ctx: RequestContext, action_uuid: str, attempt: int, host: str) -> None:
        self.engine.recovery.begin(action_uuid, attempt, host)

    def resume(self, ctx: RequestContext, host: str) -> list[StepOrder]:
        return self.engine.recovery.resume(host)

    def handed_over(self, ctx: RequestContext) -> None:
        self._check()


class NetworkHosts(Endpoint, by_hosts_api.NetworkHosts):
    """Requests of the network back ends of hosts: security rules, DNS names, and the other hosts of networks."""

    def rules(self, ctx: RequestContext, known: dict[str, int], grouped: bool = False) -> dict[str, RuleSet]:
        return self.core.db.read(lambda connection: security_filters.newer(connection, known, ctx.calling_host))

    def names(self, ctx: RequestContext, host: str, known: dict[str, int]) -> list[ServedDomain]:
        return self.core.db.read(lambda connection: floating_ip_dns.newer_served(connection, host, known))

    def present(self, ctx: RequestContext, host: str, address: str, networks: dict[str, int],
                complete: bool = False) -> list[Peers]:
        address = _end_of_tunnels(address)

        def read(connection: sa.Connection) -> tuple[dict[str, int], list[Peers] | None]:
            """Return the networks that the host may join, and the reply, or None if there are changes to write. Usually
            there are none: hosts mostly check that their tunnels are current."""
            changed = network_hosts.differs(connection, host, address, networks, complete)
            if not changed:
                return networks, network_hosts.newer(connection, networks)
            # A host without a server on a network does not get the addresses of its other hosts, nor they its address.
            strange = network_hosts.strangers(connection, host, changed & set(networks)) if ctx.calling_host else set()
            return {network: version for network, version in networks.items() if network not in strange}, None

        mine, answer = self.core.db.read(read)
        if answer is not None:
            return answer
        if len(mine) < len(networks):
            LOG.warning("Host %s requested the other hosts of networks on which it has no server, refused: %s", host,
                        ", ".join(sorted(networks.keys() - mine.keys())))

        def write(connection: sa.Connection) -> tuple[set[str], list[Peers]]:
            changed = network_hosts.present(connection, host, address, mine, complete)
            return changed, network_hosts.newer(connection, mine)

        changed, answer = self.core.db.write(write)
        self.core.peers.touch(changed)
        return answer


def _end_of_tunnels(text: str) -> str:
    """Return the normalized address, to which other hosts send guest traffic. Raises InvalidInput."""
    try:
        address = plain_ip.address(text)
    except ValueError:
        address = None
    if address is None or address.is_multicast or address.is_unspecified:
        raise exception.InvalidInput(reason=f"invalid tunnel address {text[:100]!a}")
    return str(address)


class Fleet(Endpoint, by_hosts_api.Fleet):
    def page(self, ctx: RequestContext, marker: str | None = None, limit: int = 500) -> FleetPage:
        limit = max(1, min(limit, 1000))
        states = self.core.db.read(lambda connection: compute_nodes.states(connection, marker, limit))
        return FleetPage(states=states, marker=states[-1].node_uuid if len(states) == limit else None)
