"""The conductor's side of a step: collects what the step wants and writes it in one transaction."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, metrics
from nova.conductor import addresses
from nova.conductor.core import Core
from nova.conductor.endpoints.security_groups import refresh
from nova.db import allocations, instances, quotas, security_groups
from nova.objects.action import Failure
from nova.objects.base import utcnow
from nova.objects.instance import Fault, Instance
from nova.objects.scheduling import RequestSpec, Selection

Effect = Callable[[sa.Connection], None]


@dataclasses.dataclass
class ConductorControl:
    """A :class:`nova.operations.contexts.Control` on the database of this conductor.

    ``apply`` may run several times (a transaction is tried again): it starts from the same
    collected wishes each time.
    """

    core: Core
    ctx: context.RequestContext
    instance: Instance
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    effects: list[Effect] = dataclasses.field(default_factory=list)
    recorded: Failure | None = None
    # Nodes whose usage the transaction changed: told to the schedulers after the commit.
    touched: set[str] = dataclasses.field(default_factory=set)
    # Servers that let this one in by its security groups: their hosts hear of its addresses.
    peers: set[str] = dataclasses.field(default_factory=set)
    claims: int = 0

    # --- what a step says ------------------------------------------------------------------------
    def set(self, **changes: Any) -> None:
        self.changes.update(changes)
        for name, value in changes.items():
            setattr(self.instance, name, value)

    def fault(self, failure: Failure) -> None:
        self.recorded = failure
        self.set(fault=Fault(code=failure.code, message=failure.message[:255], details=failure.details,
                             created=utcnow()))

    def select(self, spec: RequestSpec) -> list[list[Selection]]:
        return self.core.scheduler.select(self.ctx, spec)

    def group_hosts(self, spec: RequestSpec) -> None:
        named = [uuid for key in ("same_host", "different_host") for uuid in _as_list(spec.hints.get(key))]
        if spec.group is None and not named:
            return

        def look(connection: sa.Connection) -> None:
            if spec.group is not None:
                spec.group.hosts = instances.group_hosts(connection, spec.group.uuid)
            if named:
                spec.hint_hosts = instances.hosts_of(connection, named)

        self.core.db.read(look)

    def claim(self, selection: Selection, resources: dict[str, int]) -> None:
        instance = self.instance

        def claim(connection: sa.Connection) -> None:
            allocations.claim(connection, instance.uuid, selection.node_uuid, resources, instance.project_id,
                              instance.user_id)
            self.touched.add(selection.node_uuid)

        self.claims += 1
        self.effects.append(claim)

    def release_claim(self) -> None:
        uuid = self.instance.uuid
        self.effects.append(lambda connection: self.touched.update(allocations.release(connection, uuid)))

    def take_addresses(self) -> None:
        if self.instance.network_info or self.instance.requested_networks == []:
            return
        instance = self.instance

        def take(connection: sa.Connection) -> None:
            self.set(network_info=addresses.take(connection, instance))
            self.peers.update(security_groups.peers(connection, instance.uuid))

        self.effects.append(take)

    def release_addresses(self) -> None:
        uuid = self.instance.uuid
        if not self.instance.network_info:
            return

        def release(connection: sa.Connection) -> None:
            self.peers.update(security_groups.peers(connection, uuid))
            addresses.release(connection, uuid)

        self.effects.append(release)
        self.set(network_info=[])

    def release_quota(self) -> None:
        instance = self.instance

        def release(connection: sa.Connection) -> None:
            quotas.release(connection, instance.project_id, instance.user_id, 1, instance.flavor.vcpus,
                           instance.flavor.memory_mb)
            security_groups.remove_members(connection, instance.uuid)

        self.effects.append(release)

    def finish_io(self, failed: bool | None, node_uuid: str | None = None) -> None:
        uuid = self.instance.uuid

        def finish(connection: sa.Connection) -> None:
            node = node_uuid or allocations.provider_of(connection, uuid)
            if node is not None:
                allocations.finish_io(connection, node, failed)
                self.touched.add(node)

        self.effects.append(finish)

    # --- what the engine does with it ------------------------------------------------------------
    def apply(self, connection: sa.Connection, **changes: Any) -> None:
        """Write everything that was asked for, and ``changes`` of the instance beside it."""
        self.touched.clear()
        self.peers.clear()
        for effect in self.effects:
            effect(connection)
        values = {**self.changes, **changes}
        if values:
            instances.update(connection, self.instance.uuid, values)

    def published(self) -> None:
        """After the commit: tell the schedulers what changed on the nodes, and the peers' hosts."""
        for _claim in range(self.claims):
            metrics.CLAIMS.inc("made")
        if self.touched:
            self.core.usage.touch(self.touched)
        if self.peers:
            refresh(self.core, self.ctx, sorted(self.peers))


def converted(changes: dict[str, Any]) -> dict[str, Any]:
    """Instance columns from a report (plain values) as the objects that the row wants."""
    types = _column_types()
    return {name: msgspec.convert(value, types[name]) for name, value in changes.items() if name in types}


@functools.cache
def _column_types() -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(Instance)}


def _as_list(value: Any) -> list[str]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [str(value)]
