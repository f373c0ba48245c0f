"""The Control of conductor steps: it collects the changes of a step and writes them in one transaction."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.resources import volume_keys, volume_removals
from nova.conductor.resources.server_images import ServerImages
from nova.conductor.resources.server_interfaces import ServerInterfaces
from nova.conductor.resources.server_shares import OutsideShares, ServerShares
from nova.conductor.resources.server_volumes import ServerVolumes
from nova.conf import CONF
from nova.db.accounts import quotas
from nova.db.hosts import aggregates, allocations, claims, dedicated_resources, services
from nova.db.networks import security_groups
from nova.db.servers import evictions, external_events, passwords, server_groups, server_migrations, servers
from nova.db.sql import clock
from nova.notifications.messages import NOTIFIED_COLUMNS, NotificationBuilder, publisher
from nova.notifications.requests import SchedulerQuery
from nova.objects.dedicated_resources.fitting import GuestDedicatedResources
from nova.objects.hosts.scheduling import DIFFERENT_HOST, SAME_HOST, RequestSpec, Selection
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Fault, Instance, without_secrets
from nova.objects.servers.migration import Migration
from nova.objects.volumes.volume import Volume, VolumeEncryption, VolumeRemoval
from nova.operations.framework.resource_contexts import OutsideInterfaces, OutsideVolumes
from nova.telemetry import metrics

Effect = Callable[[sa.Connection], object]


@dataclasses.dataclass
class ConductorControl:
    """A :class:`nova.operations.framework.contexts.Control` on the database of this conductor. ``apply`` may run
    several times, because transactions are retried. Each run starts from the same collected changes."""

    core: Core
    ctx: context.RequestContext
    instance: Instance
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    items: dict[str, str | None] = dataclasses.field(default_factory=dict)
    effects: list[Effect] = dataclasses.field(default_factory=list)
    recorded: Failure | None = None
    # Nodes whose usage the transaction changed. The usage is published to the schedulers after the commit.
    touched: set[str] = dataclasses.field(default_factory=set)
    # Changed security groups. They are published after the commit to hosts whose rules name them as remote groups.
    filters: set[str] = dataclasses.field(default_factory=set)
    # Volume data to remove. The removals are sent to their hosts after the commit.
    removals: list[VolumeRemoval] = dataclasses.field(default_factory=list)
    # Hosts with new evictions. Those that are up are requested after the commit to remove the guest.
    evicted: set[str] = dataclasses.field(default_factory=set)
    claims: int = 0
    waited_out: bool = False
    # The effects write the rows of these nodes and of the nodes of these consumers. If there are several, apply() first
    # locks all of them in an order that is the same in all processes, so that transactions do not deadlock.
    _nodes: set[str] = dataclasses.field(default_factory=set)
    _consumers: set[str] = dataclasses.field(default_factory=set)
    _closes: bool = False
    saved_by: str = ""  # publisher of instance.update notifications; "": this conductor
    scheduler_queries: list[SchedulerQuery] = dataclasses.field(default_factory=list)  # reported by notifications
    connection: sa.Connection | None = None  # of the transaction that accepts an operation; None in its steps

    def __post_init__(self) -> None:
        self._previous_states = (self.instance.vm_state, self.instance.task_state)

    def now(self) -> datetime.datetime:
        return clock.now()

    @property
    def plugging_timeout(self) -> int:
        return int(CONF.vif_plugging_timeout)

    @property
    def plugging_is_fatal(self) -> bool:
        return bool(CONF.vif_plugging_is_fatal)

    @property
    def reimage_timeout(self) -> int:
        return int(CONF.reimage_timeout_per_gb)

    # --- changes of the instance -----------------------------------------------------------------
    def set(self, **changes: Any) -> None:
        self.changes.update(changes)
        for name, value in changes.items():
            setattr(self.instance, name, value)

    def set_items(self, items: Mapping[str, str | None]) -> None:
        self.items.update(items)
        self.instance.system_metadata = _merged(self.instance.system_metadata, items)

    def keep_secret(self, password: str | None) -> None:
        self.forget_secrets()
        if password is not None:
            self.set(encrypted_pass=self.core.cipher.encrypt(password))

    def check_secrets(self) -> None:
        self.core.cipher.decrypt(self.instance.encrypted_pass)

    def forget_secrets(self) -> None:
        """Delete the secrets that the ended operation needed."""
        if any(getattr(self.instance, name) for name in passwords.NONE):
            self.set(**passwords.NONE)

    def fault(self, failure: Failure) -> None:
        self.recorded = failure
        self.set(fault=Fault(code=failure.code, message=failure.message[:255], details=failure.details,
                             created=clock.now()))

    def select(self, spec: RequestSpec) -> list[list[Selection]]:
        query = SchedulerQuery(msgspec.structs.replace(spec))
        self.scheduler_queries.append(query)
        selections = self.core.scheduler.select(self.ctx, spec)
        query.succeeded = True
        return selections

    def group_hosts(self, spec: RequestSpec) -> None:
        named = [uuid for key in (SAME_HOST, DIFFERENT_HOST) for uuid in spec.hint(key)]
        weighed = _weighed_properties(spec)
        if spec.group is None and not named and not weighed:
            return

        def read(connection: sa.Connection) -> None:
            if spec.group is not None:
                spec.group.hosts = server_groups.members_by_host(connection, spec.group.uuid, spec.instance_uuids)
            if named:
                spec.hint_hosts = servers.hosts_of(connection, self.instance.project_id, named)
            if weighed:
                spec.image_hosts = servers.sharing_image_properties(connection, weighed)

        self.core.db.read(read)

    def claim(self, selection: Selection, spec: RequestSpec, consumer: str = "") -> None:
        instance = self.instance

        def claim(connection: sa.Connection) -> None:
            claimed = claims.claim(connection, instance, selection, spec, consumer)
            self.touched.add(selection.node_uuid)
            if not consumer:
                self._set_dedicated_resources(claimed)

        self.claims += 1
        self.effects.append(claim)

    def _then(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call ``function`` with these arguments in the transaction of the step."""
        self.effects.append(lambda connection: function(connection, *arguments))

    def release_claim(self, consumer: str = "") -> None:
        uuid = consumer or self.instance.uuid
        self._consumers.add(uuid)
        self.effects.append(lambda connection: self.touched.update(allocations.release(connection, uuid)))

    def rekey_claim(self, consumer: str) -> None:
        self._then(allocations.rekey, consumer, self.instance.uuid)

    def use_claim(self, consumer: str = "") -> None:
        uuid = consumer or self.instance.uuid
        self.effects.append(
            lambda connection: self._set_dedicated_resources(dedicated_resources.of_claim(connection, uuid)))

    def _set_dedicated_resources(self, claimed: GuestDedicatedResources) -> None:
        current = GuestDedicatedResources(numa_topology=self.instance.numa_topology,
                                          pci_devices=self.instance.pci_devices)
        if claimed != current:
            self.set(numa_topology=claimed.numa_topology, pci_devices=claimed.pci_devices)

    # --- migrations ------------------------------------------------------------------------------
    def migrate(self, uuid: str, **changes: Any) -> None:
        self._then(server_migrations.update, uuid, changes)

    def migration(self, uuid: str) -> Migration:
        return self.core.db.read(lambda connection: server_migrations.get(connection, uuid))

    def close_migrations(self) -> None:
        instance = self.instance

        def close(connection: sa.Connection) -> None:
            for migration in server_migrations.open_of(connection, [instance.uuid]):
                self.touched.update(allocations.release(connection, migration.uuid))
                self._charge(connection, *migration.beyond(instance.flavor), -1)
                server_migrations.update(connection, migration.uuid, {"open": False})

        self._closes = True
        self.effects.append(close)

    def charge(self, cores: int = 0, ram: int = 0) -> None:
        self._then(self._charge, cores, ram)

    def _charge(self, connection: sa.Connection, cores: int, ram: int, sign: int = 1, instances: int = 0) -> None:
        if cores or ram or instances:
            quotas.spend(connection, self.instance.project_id, self.instance.user_id, sign * instances, sign * cores,
                         sign * ram)

    def soft_delete(self, at: datetime.datetime | None = None) -> None:
        if self.instance.soft_deleted_at is None:
            self._count(-1)
            self.set(soft_deleted_at=at or clock.now())

    def undelete(self) -> None:
        if self.instance.soft_deleted_at is not None:
            self._count(1)
            self.set(soft_deleted_at=None)

    def _count(self, sign: int) -> None:
        self._then(self._charge, self.instance.flavor.vcpus, self.instance.flavor.memory_mb, sign, 1)

    def evict(self, host: str, keep_disks: bool) -> None:
        self._then(evictions.add, self.instance.uuid, host, keep_disks)
        self.evicted.add(host)

    def keep(self, host: str) -> None:
        self._then(evictions.remove, host, [self.instance.uuid])

    def quiesce(self, host: str) -> None:
        self.core.compute_at(host).quiesce(self.ctx, without_secrets(self.instance))

    def unquiesce(self, host: str) -> None:
        self.core.compute_at(host).unquiesce(self.ctx, without_secrets(self.instance))

    def zone_of(self, host: str) -> str:
        zones = self.core.db.read(lambda connection: aggregates.host_zones(aggregates.of_host(connection, host)))
        return zones.get(host) or str(CONF.default_availability_zone)

    def host_up(self, host: str) -> bool:
        return self.core.db.read(lambda connection: services.host_up(connection, host))

    def evicted_hosts(self) -> list[str]:
        return self.core.db.read(lambda connection: evictions.hosts(connection, self.instance.uuid))

    def hasten_eviction(self, host: str) -> None:
        self.core.compute_at(host).reap(self.ctx, self.instance.uuid)

    # --- external events -------------------------------------------------------------------------
    def events(self, *keys: str) -> dict[str, str]:
        return self.core.db.read(lambda connection: external_events.came(connection, self.instance.uuid, keys))

    def forget_events(self, *keys: str) -> None:
        self._then(external_events.forget, self.instance.uuid, keys)

    # --- resources -------------------------------------------------------------------------------
    @functools.cached_property
    def volumes(self) -> ServerVolumes:
        return ServerVolumes(self, self.connection)

    @functools.cached_property
    def outside_volumes(self) -> OutsideVolumes:
        return self.core.attachments.of_server(self)

    def connector(self, host: str) -> dict[str, Any] | None:
        return self.core.db.read(lambda connection: services.connector(connection, host))

    def key_of(self, volume: Volume) -> VolumeEncryption | None:
        return volume_keys.fetched(self.core, self.ctx, volume)

    @functools.cached_property
    def shares(self) -> ServerShares:
        return ServerShares(self)

    @functools.cached_property
    def outside_shares(self) -> OutsideShares:
        return OutsideShares(self)

    @functools.cached_property
    def images(self) -> ServerImages:
        return ServerImages(self)

    @functools.cached_property
    def interfaces(self) -> ServerInterfaces:
        return ServerInterfaces(self, self.connection)

    @functools.cached_property
    def outside_interfaces(self) -> OutsideInterfaces:
        return self.core.allocator.of_server(self)

    @property
    def network_is_outside(self) -> bool:
        return self.core.allocator.external

    def release_quota(self) -> None:
        instance, counts = self.instance, self.instance.soft_deleted_at is None

        def release(connection: sa.Connection) -> None:
            if counts:
                self._charge(connection, instance.flavor.vcpus, instance.flavor.memory_mb, -1, 1)
            security_groups.remove_members(connection, instance.uuid)

        self.effects.append(release)

    def finish_io(self, failed: bool | None, node_uuid: str | None = None, consumer: str = "") -> None:
        uuid = consumer or self.instance.uuid

        def finish(connection: sa.Connection) -> None:
            node = node_uuid or allocations.root_of(connection, uuid)
            if node is not None:
                allocations.finish_io(connection, node, failed)
                self.touched.add(node)

        self._nodes.update([node_uuid] if node_uuid else [])
        self._consumers.update([] if node_uuid else [uuid])
        self.effects.append(finish)

    # --- the transaction -------------------------------------------------------------------------
    def apply(self, connection: sa.Connection, **changes: Any) -> None:
        """Write all collected changes, and ``changes`` of the instance."""
        self.touched.clear()
        self.filters.clear()
        self.removals.clear()
        if len(self._nodes) + len(self._consumers) + self._closes > 1:
            allocations.hold(connection, self._nodes, self._consumers, self.instance.uuid if self._closes else "")
        for effect in self.effects:
            effect(connection)
        values = {**self.changes, **changes}
        if self.items:
            with contextlib.suppress(exception.InstanceNotFound):
                now = servers.lock(connection, self.instance.uuid).system_metadata
                values["system_metadata"] = _merged(values.get("system_metadata", now), self.items)
        if values:
            servers.update(connection, self.instance.uuid, values)
        outbox = self.core.outbox
        if outbox.updates and not NOTIFIED_COLUMNS.isdisjoint(values):
            by = self.saved_by or publisher("nova-conductor", CONF.host)
            outbox.write(connection, NotificationBuilder(outbox.settings, self.ctx).updated(
                self.instance, by, self._previous_states, outbox.updates))

    def after_commit(self) -> None:
        """Publish changed usage to schedulers, changed security groups to hosts, and volume removals and evictions to
        their hosts."""
        for _claim in range(self.claims):
            metrics.CLAIMS.inc("made")
        if self.touched:
            self.core.usage.touch(self.touched)
        self.core.filters.touch(self.filters)
        if self.removals:
            volume_removals.send(self.core, self.ctx, self.removals, self.instance.host or "")
        for host in self.evicted:
            with contextlib.suppress(exception.ServiceUnavailable):  # the host compares its guests when it returns
                if self.host_up(host):
                    self.hasten_eviction(host)


def _merged(items: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**items, **changes}.items() if value is not None}


def converted(changes: dict[str, Any]) -> dict[str, Any]:
    """Convert instance columns of a report from plain values to the types of the row."""
    return {name: msgspec.convert(value, _TYPES[name]) for name, value in changes.items() if name in _TYPES}


_TYPES = {field.name: field.type for field in msgspec.structs.fields(Instance)}


def _weighed_properties(spec: RequestSpec) -> dict[str, str]:
    """Return the image properties that schedulers weigh by the hosts of servers with the same values."""
    options = CONF.filter_scheduler
    wanted = {setting.partition("=")[0].strip() for setting in options.image_props_weight_setting}
    if spec.image is None or not (wanted or options.image_props_weight_multiplier):
        return {}
    return {name: value for name, value in spec.image.properties.items() if name in wanted or not wanted}
