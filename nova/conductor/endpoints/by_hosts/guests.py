"""Guest reports of compute hosts, and the expected state that hosts compare their guests with."""

from __future__ import annotations

import datetime
import logging

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor import announcer
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.endpoints.derived import reads
from nova.conductor.feeds import host_notices
from nova.conductor.feeds.cached_images import images_cached
from nova.conductor.saga.engine import Engine
from nova.db.hosts import precaches, services
from nova.db.networks import fixed_ips
from nova.db.servers import evictions, server_migrations, servers
from nova.objects.hosts.node import ComputeNode
from nova.objects.images.image_cache import ENDS, CacheResult
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.guest import PASSWORD_MAX, GuestStatus, Resumed, Whereabouts, password_items, password_of
from nova.objects.servers.instance import Instance, without_secrets
from nova.objects.volumes.volume import VolumeCounters
from nova.operations.power import ResumeOnBoot, SyncPower, differs

LOG = logging.getLogger(__name__)

# Maximum length of a message from a host, in characters.
_MESSAGE = 1000
# Maximum lengths of an error's traceback and of a host's address, in characters.
_DETAILS, _ADDRESS = 10_000, 64


class Guests:
    """Implements :class:`nova.rpcapi.by_hosts.Guests`."""

    expected = reads(servers.expected)
    evictions = reads(evictions.of_host)

    def __init__(self, core: Core, engine: Engine) -> None:
        self.core = core
        self.engine = engine

    def whereabouts(self, ctx: context.RequestContext, host: str, uuids: list[str]) -> list[Whereabouts]:
        guests = self.core.db.read(lambda connection: evictions.whereabouts(connection, host, uuids))
        for where in guests:
            # Never disclose other hosts.
            where.possible_hosts = [possible for possible in where.possible_hosts if possible == host]
        return guests

    def on_host(self, ctx: context.RequestContext, host: str, limit: int = 1000,
                marker: str | None = None) -> list[Instance]:
        instances = self.core.db.read(lambda connection: servers.on_host(connection, host, limit, marker))
        return [without_secrets(instance) for instance in instances]

    def described(self, ctx: context.RequestContext, uuids: list[str]) -> list[Instance]:
        instances = self.core.db.read(lambda connection: servers.get_many(connection, uuids, ctx.calling_host))
        return [without_secrets(instance) for instance in instances]

    def report_nodes(self, ctx: context.RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        return announcer.report_nodes(self.core, host, nodes, after, upto, trusted=not ctx.calling_host)

    def power_states(self, ctx: context.RequestContext, host: str, guests: list[GuestStatus]) -> None:
        reported = {guest.uuid: guest.power_state for guest in guests if guest.power_state in states.POWER_STATES}
        late = {guest.uuid for guest in guests if guest.late}

        def write(connection: sa.Connection) -> list[str]:
            wrong = []
            for instance in servers.get_many(connection, list(reported)):
                power_state = reported[instance.uuid]
                superseded = instance.uuid in late and instance.action_uuid is not None
                if instance.host != host or instance.task_state is not None or superseded:
                    continue  # the running operation, or the one that superseded the reported one, sets the state
                unknown = instance.power_state == states.NOSTATE or instance.uuid in late
                vm_state = states.vm_state_of(instance.vm_state, power_state) if unknown else None
                if vm_state:
                    # An operation was abandoned with its host: take the server's state from the guest.
                    servers.update(connection, instance.uuid, {"power_state": power_state, "vm_state": vm_state})
                elif differs(instance.vm_state, power_state):
                    wrong.append(instance.uuid)
                elif instance.power_state != power_state:
                    servers.update(connection, instance.uuid, {"power_state": power_state})
            return wrong

        for uuid in self.core.db.write(write):
            if not self.core.host_rates.of_guest(host, uuid):
                continue
            LOG.info("[instance: %s] The power state of the guest changed to %d without an operation; its host "
                     "re-checks the guest and corrects it", uuid, reported[uuid])
            try:
                # Use an admin context: a locked server is synchronized, too.
                start(self.engine, context.admin(), uuid, SyncPower.name, {})
            except exception.NovaException as error:
                LOG.info("[instance: %s] Operation %s was not started: %s", uuid, SyncPower.name, error)

    def resume(self, ctx: context.RequestContext, host: str, waiting: list[str], begun: list[str],
               at_once: int) -> Resumed:
        def read(connection: sa.Connection) -> tuple[bool, dict[str, bool]]:
            return services.host_up(connection, host), servers.runnable(connection, host, [*waiting, *begun])

        up, runnable = self.core.db.read(read)
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

    def images_cached(self, ctx: context.RequestContext, host: str, results: list[CacheResult]) -> None:
        if any(result.state not in ENDS for result in results):
            raise exception.InvalidInput(reason="the state of an image that was cached is none of those")
        truncated = [msgspec.structs.replace(result, message=result.message[:_MESSAGE]) for result in results]

        def write(connection: sa.Connection) -> None:
            done = precaches.ended(connection, host, truncated)
            self.core.outbox.notify(connection, ctx, lambda builder: images_cached(connection, builder, done))

        self.core.db.write(write)

    def volumes_used(self, ctx: context.RequestContext, host: str, counters: list[VolumeCounters]) -> None:
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

    def hypervisor_lost(self, ctx: context.RequestContext, host: str, address: str, failure: Failure) -> None:
        if not self.core.host_rates.lost(host):
            return
        LOG.warning("Host %s has lost its hypervisor connection: %s", host, failure.message[:_MESSAGE])
        short = msgspec.structs.replace(failure, message=failure.message[:_MESSAGE], kind=failure.kind[:_MESSAGE],
                                        details=failure.details[:_DETAILS])
        self.core.db.write(lambda connection: self.core.outbox.notify(
            connection, context.admin(),
            lambda builder: host_notices.hypervisor_lost(builder, host, address[:_ADDRESS], short)))

    def evicted(self, ctx: context.RequestContext, host: str, uuids: list[str],
                since: dict[str, datetime.datetime] | None = None) -> None:
        def write(connection: sa.Connection) -> None:
            if since is None:
                evictions.remove(connection, host, uuids)
            else:
                evictions.carried_out(connection, host, since)
            server_migrations.complete_evacuations(connection, host, uuids)

        self.core.db.write(write)
        LOG.info("Host %s removed %d evicted guests", host, len(uuids))

    def by_address(self, ctx: context.RequestContext, network_id: str, address: str) -> Instance:
        def read(connection: sa.Connection) -> Instance:
            uuid = fixed_ips.owner_of(connection, network_id, address)
            if uuid is None:
                raise exception.InstanceNotFound(instance_id=address)
            try:
                return servers.check_place(connection, servers.get(connection, uuid), ctx.calling_host)
            except exception.InstanceNotFound:
                raise exception.InstanceNotFound(instance_id=address) from None

        return without_secrets(self.core.db.read(read))

    def set_password(self, ctx: context.RequestContext, uuid: str, items: dict[str, str]) -> None:
        wanted = password_items(password_of(items)[:PASSWORD_MAX])

        def write(connection: sa.Connection) -> None:
            instance = servers.check_place(connection, servers.lock(connection, uuid), ctx.calling_host)
            if password_of(instance.system_metadata):
                raise exception.Conflict("The password is set already.")
            servers.update(connection, uuid, {"system_metadata": {**instance.system_metadata, **wanted}})

        self.core.db.write(write)
