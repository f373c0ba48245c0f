"""The invariants of the books: do claims, quotas, addresses, actions and rows agree?

One module for ``nova-manage audit`` and for the tests that break things on purpose. A finding
that can be put right without asking anybody carries its repair.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from nova.db import models
from nova.objects import states
from nova.objects.base import utcnow
from nova.operations.resources import requested_resources

Repair = Callable[[sa.Connection], None]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One disagreement: what is wrong with what, and how to put it right (None: an operator decides)."""

    kind: str
    subject: str
    detail: str
    repair: Repair | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.detail}"


def audit(connection: sa.Connection) -> list[Finding]:
    """Every disagreement among the rows. Run it while no operation is under way, or look twice."""
    checks = (_usage_of_providers, _allocations_of_instances, _counts_of_nodes, _quotas, _addresses, _operations,
              _group_members)
    return [finding for check in checks for finding in check(connection)]


def _alive(connection: sa.Connection) -> dict[str, Any]:
    table = models.instances
    statement = sa.select(table.c.uuid, table.c.project_id, table.c.user_id, table.c.host, table.c.node,
                          table.c.vm_state, table.c.task_state, table.c.action_uuid, table.c.network_info,
                          table.c.flavor, table.c.image, table.c.block_devices, table.c.launched_at,
                          ).where(table.c.deleted == sa.false())
    return {row.uuid: row for row in connection.execute(statement)}


# --- claims ----------------------------------------------------------------------------------------------
def _usage_of_providers(connection: sa.Connection) -> Iterator[Finding]:
    """The sum of claims is what the inventories say is used."""
    claimed: collections.Counter[tuple[str, str]] = collections.Counter()
    for row in connection.execute(sa.select(models.allocations.c.provider_uuid, models.allocations.c.resources)):
        for name, amount in row.resources.items():
            claimed[row.provider_uuid, name] += amount
    table = models.inventories
    for row in connection.execute(sa.select(table)):
        right = claimed.pop((row.provider_uuid, row.resource_class), 0)
        if row.used != right:
            this = sa.and_(table.c.provider_uuid == row.provider_uuid, table.c.resource_class == row.resource_class)
            yield Finding("usage", f"{row.provider_uuid} {row.resource_class}",
                          f"{row.used} used, but the claims sum up to {right}",
                          _put(table, this, used=right))
        if row.used > (row.total - row.reserved) * row.ratio:
            yield Finding("oversold", f"{row.provider_uuid} {row.resource_class}",
                          f"{row.used} used of {(row.total - row.reserved) * row.ratio:g}")
    for (provider, name), amount in claimed.items():
        yield Finding("usage", f"{provider} {name}", f"{amount} claimed of an inventory that does not exist")


def _allocations_of_instances(connection: sa.Connection) -> Iterator[Finding]:
    """Whoever is on a host has a claim there, and nobody else has one."""
    alive = _alive(connection)
    nodes = {row.uuid: row for row in connection.execute(
        sa.select(models.compute_nodes.c.uuid, models.compute_nodes.c.host,
                  models.compute_nodes.c.hypervisor_hostname))}
    table = models.allocations
    claims: dict[str, list[Any]] = collections.defaultdict(list)
    for row in connection.execute(sa.select(table)):
        claims[row.consumer_uuid].append(row)
        instance, node = alive.get(row.consumer_uuid), nodes.get(row.provider_uuid)
        if instance is not None and (
                node is None or (instance.host, instance.node) == (node.host, node.hypervisor_hostname)):
            wanted = _resources(instance)
            if row.resources != wanted:
                yield Finding("claim", f"{row.consumer_uuid} on {row.provider_uuid}",
                              f"{row.resources} claimed, the server's flavor asks for {wanted}")
            continue
        why = "no such server" if instance is None else f"the server is on {instance.host}/{instance.node}"
        this = sa.and_(table.c.consumer_uuid == row.consumer_uuid, table.c.provider_uuid == row.provider_uuid)
        yield Finding("claim", f"{row.consumer_uuid} on {row.provider_uuid}", why,
                      functools.partial(_drop_claim, this=this, row=row))
    for uuid, instance in alive.items():
        if instance.host and uuid not in claims:
            yield Finding("claim", uuid, f"the server is on {instance.host} without a claim")
        elif len(claims[uuid]) > 1:
            yield Finding("claim", uuid, f"the server has {len(claims[uuid])} claims")


def _resources(instance: Any) -> dict[str, int]:
    """What a server has to claim."""
    volume_backed = any(disk.boot_index == 0 and disk.destination == "volume" for disk in instance.block_devices)
    return requested_resources(instance.flavor, instance.image, volume_backed)[0]


def _drop_claim(connection: sa.Connection, this: Any, row: Any) -> None:
    connection.execute(sa.delete(models.allocations).where(this))
    for name, amount in row.resources.items():
        table = models.inventories
        connection.execute(sa.update(table).where(
            table.c.provider_uuid == row.provider_uuid, table.c.resource_class == name)
            .values(used=table.c.used - amount))
    nodes = models.compute_nodes
    connection.execute(sa.update(nodes).where(nodes.c.uuid == row.provider_uuid).values(
        num_instances=nodes.c.num_instances - 1, generation=nodes.c.generation + 1))


def _counts_of_nodes(connection: sa.Connection) -> Iterator[Finding]:
    """num_instances counts the claims of a node, num_io_ops its builds under way."""
    claims: dict[str, int] = dict(connection.execute(sa.select(
        models.allocations.c.provider_uuid, sa.func.count()).group_by(models.allocations.c.provider_uuid)).all())
    table = models.instances
    builds = collections.Counter((row.host, row.node) for row in connection.execute(
        sa.select(table.c.host, table.c.node).where(
            table.c.deleted == sa.false(), table.c.launched_at.is_(None), table.c.host.is_not(None),
            table.c.vm_state == states.BUILDING)))
    nodes = models.compute_nodes
    for row in connection.execute(sa.select(nodes)):
        right = {"num_instances": claims.get(row.uuid, 0), "num_io_ops": builds[row.host, row.hypervisor_hostname]}
        wrong = {name: value for name, value in right.items() if getattr(row, name) != value}
        if wrong:
            yield Finding("node", f"{row.host}/{row.hypervisor_hostname}", ", ".join(
                f"{name} is {getattr(row, name)}, counted {value}" for name, value in wrong.items()),
                _put(nodes, nodes.c.id == row.id, generation=nodes.c.generation + 1, **wrong))


# --- quotas and addresses ----------------------------------------------------------------------------------
def _quotas(connection: sa.Connection) -> Iterator[Finding]:
    """What a project (and each user in it) is charged is what its servers sum up to."""
    right: dict[tuple[str, str], dict[str, int]] = {}
    for instance in _alive(connection).values():
        for user_id in ("", instance.user_id):
            sums = right.setdefault((instance.project_id, user_id), {"instances": 0, "cores": 0, "ram": 0})
            sums["instances"] += 1
            sums["cores"] += instance.flavor.vcpus
            sums["ram"] += instance.flavor.memory_mb
    table = models.quota_usages
    for row in connection.execute(sa.select(table)):
        sums = right.pop((row.project_id, row.user_id), {"instances": 0, "cores": 0, "ram": 0})
        wrong = {name: value for name, value in sums.items() if getattr(row, name) != value}
        if wrong:
            this = sa.and_(table.c.project_id == row.project_id, table.c.user_id == row.user_id)
            yield Finding("quota", f"project {row.project_id} user {row.user_id or '(all)'}", ", ".join(
                f"{name} is {getattr(row, name)}, counted {value}" for name, value in wrong.items()),
                _put(table, this, **wrong))
    for (project_id, user_id), sums in right.items():
        yield Finding("quota", f"project {project_id} user {user_id or '(all)'}", f"{sums} is not charged",
                      _run(sa.insert(table).values(project_id=project_id, user_id=user_id, **sums)))


def _addresses(connection: sa.Connection) -> Iterator[Finding]:
    """An address is held by one living server, which knows of it."""
    alive = _alive(connection)
    table = models.fixed_ips
    held = {(row.network_uuid, row.address): row for row in connection.execute(
        sa.select(table).where(table.c.instance_uuid.is_not(None)))}
    for (_network, address), row in held.items():
        instance = alive.get(row.instance_uuid)
        if instance is not None and any(
                vif.address == address and vif.network_id == row.network_uuid for vif in instance.network_info):
            continue
        yield Finding("address", address, f"held by {row.instance_uuid}, which does not have it",
                      _put(table, table.c.id == row.id, instance_uuid=None, vif_id=None, updated_at=utcnow()))
    for uuid, instance in alive.items():
        for vif in instance.network_info:
            holder = held.get((vif.network_id, vif.address))
            if holder is None or holder.instance_uuid != uuid:
                yield Finding("address", vif.address, f"{uuid} uses it, but it is held by "
                                                      f"{holder.instance_uuid if holder else 'nobody'}")


# --- operations ----------------------------------------------------------------------------------------------
def _operations(connection: sa.Connection) -> Iterator[Finding]:
    """A task belongs to an action under way, and an action under way to an instance."""
    table = models.actions
    open_actions = {row.uuid: row for row in connection.execute(
        sa.select(table.c.uuid, table.c.instance_uuid, table.c.action, table.c.lease_until, table.c.step)
        .where(table.c.outcome.is_(None)))}
    alive = _alive(connection)
    instances = models.instances
    for uuid, instance in alive.items():
        if (instance.task_state or instance.action_uuid) and instance.action_uuid not in open_actions:
            yield Finding("task", uuid, f"task_state {instance.task_state} belongs to no action under way",
                          _put(instances, instances.c.uuid == uuid, task_state=None, action_uuid=None))
        elif instance.vm_state == states.BUILDING and instance.action_uuid is None:
            yield Finding("task", uuid, "is to be built, and nobody builds it")
    for uuid, action in open_actions.items():
        instance = alive.get(action.instance_uuid)
        if instance is None or instance.action_uuid != uuid:
            yield Finding("action", uuid, f"{action.action} of {action.instance_uuid} is under way, but the server "
                                          "does not know of it",
                          _put(table, table.c.uuid == uuid, outcome="superseded", finish_time=utcnow()))


def unfinished(connection: sa.Connection) -> list[str]:
    """Descriptions of the operations that are still under way."""
    table = models.actions
    return [f"{row.action} of {row.instance_uuid} at step {row.step} ({row.owner})" for row in connection.execute(
        sa.select(table).where(table.c.outcome.is_(None)))]


def open_events(connection: sa.Connection) -> list[str]:
    """Descriptions of the events without a result that belong to actions which are over."""
    table = models.actions
    return [f"{event.event} of {row.action} of {row.instance_uuid}" for row in connection.execute(
        sa.select(table.c.action, table.c.instance_uuid, table.c.events).where(table.c.outcome.is_not(None)))
        for event in row.events if event.finish_time is None]


def _group_members(connection: sa.Connection) -> Iterator[Finding]:
    """Only living servers are members of security groups."""
    table, instances = models.security_group_members, models.instances
    dead = sa.select(table.c.group_id, table.c.instance_uuid).outerjoin(
        instances, sa.and_(instances.c.uuid == table.c.instance_uuid, instances.c.deleted == sa.false())
    ).where(instances.c.id.is_(None))
    for row in connection.execute(dead):
        yield Finding("security group", str(row.group_id), f"{row.instance_uuid} is a member but does not exist",
                      _run(sa.delete(table).where(
                          table.c.group_id == row.group_id, table.c.instance_uuid == row.instance_uuid)))


def _put(table: sa.Table, where: sa.ColumnElement[bool], **values: Any) -> Repair:
    """The repair that writes ``values`` there."""
    return _run(sa.update(table).where(where).values(**values))


def _run(statement: Any) -> Repair:
    def repair(connection: sa.Connection) -> None:
        connection.execute(statement)

    return repair
