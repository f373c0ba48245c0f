"""Checks of claims: the usage of a host is the sum of its claims, and each server has the claims of its flavor. No two
claims share dedicated CPUs of a NUMA cell or a PCI device, and servers use the dedicated resources of their claims."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nova.db import tables
from nova.db.audit.base import Check, Finding, alive, hold, put
from nova.db.hosts import allocations
from nova.db.placement import providers
from nova.objects.accounts.flavor import Flavor
from nova.objects.dedicated_resources import fitting
from nova.objects.dedicated_resources.fitting import GuestDedicatedResources
from nova.objects.requirements.requested_resources import requested_resources
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.instance import root_volume

CLAIMS = tables.allocations
INVENTORIES = tables.inventories
INSTANCES = tables.instances
MIGRATIONS = tables.migrations
NODES = tables.compute_nodes
_OF_SERVERS = allocations.OF_SERVERS  # claims of other consumers belong to no server


# States of an open migration whose data transfer has ended.
_SETTLED = (migration_states.FINISHED, migration_states.CONFIRMING, migration_states.REVERTING, migration_states.ERROR)


class Claims(Check):
    """Check that each server has a claim on its host, and that no other claims exist. Subjects: consumers. While a
    server moves, its own claim is on the source and the claim of the migration on the destination."""

    subjects = (sa.select(CLAIMS.c.consumer_uuid).where(_OF_SERVERS),
                sa.select(INSTANCES.c.uuid).where(INSTANCES.c.deleted == sa.false(), INSTANCES.c.host.is_not(None)),
                sa.select(MIGRATIONS.c.uuid).where(MIGRATIONS.c.open == sa.true()))

    def lock(self, connection: sa.Connection, key: str) -> None:
        # Lock the migrations and the instance: every change of claims also writes one of these rows.
        moving = connection.scalars(
            sa.select(MIGRATIONS.c.instance_uuid).where(_of([key]), MIGRATIONS.c.open == sa.true())
            .order_by(MIGRATIONS.c.id).with_for_update()).all()
        hold(connection, INSTANCES, INSTANCES.c.uuid.in_([key, *moving]))

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        trees: dict[tuple[str, str], list[Any]] = collections.defaultdict(list)
        for row in connection.execute(sa.select(
                CLAIMS.c.consumer_uuid, CLAIMS.c.provider_uuid, allocations.ROOT.label("root"), CLAIMS.c.resources)
                .where(CLAIMS.c.consumer_uuid.in_(keys), _OF_SERVERS)
                .order_by(CLAIMS.c.consumer_uuid, CLAIMS.c.provider_uuid)):
            trees[row.consumer_uuid, row.root].append(row)
        nodes = {row.uuid: row for row in connection.execute(
            sa.select(NODES.c.uuid, NODES.c.host, NODES.c.hypervisor_hostname)
            .where(NODES.c.uuid.in_({root for _consumer, root in trees})))}
        wanted = _wanted(connection, keys)
        for (consumer, root), held in trees.items():
            yield from _wrong_claim(wanted.get(consumer), nodes.get(root), consumer, root, held)
        claims = collections.Counter(consumer for consumer, _root in trees)
        for consumer, want in wanted.items():
            if want.host and consumer not in claims:
                yield Finding("claim", consumer, f"the server is on {want.host} without a claim")
            elif claims[consumer] > 1:
                yield Finding("claim", consumer, f"the server has {claims[consumer]} claims")


@dataclasses.dataclass(frozen=True)
class _Want:
    """The host on which a consumer must have its claim (None: no claim), and the amounts."""

    host: str | None
    node: str | None
    resources: dict[str, int]


def _of(keys: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a migration is one of these consumers, or moves one of these servers."""
    return sa.or_(MIGRATIONS.c.uuid.in_(keys), MIGRATIONS.c.instance_uuid.in_(keys))


def _wanted(connection: sa.Connection, keys: Sequence[str]) -> dict[str, _Want]:
    """Return consumer -> the claim that it must have, for consumers that are servers or open migrations."""
    moving = connection.execute(sa.select(
        MIGRATIONS.c.uuid, MIGRATIONS.c.instance_uuid, MIGRATIONS.c.source_compute, MIGRATIONS.c.source_node,
        MIGRATIONS.c.dest_compute, MIGRATIONS.c.dest_node, MIGRATIONS.c.old_flavor, MIGRATIONS.c.new_flavor)
        .where(_of(keys), MIGRATIONS.c.open == sa.true()).order_by(MIGRATIONS.c.id)).all()
    instances = alive(connection, [*keys, *(move.instance_uuid for move in moving)], INSTANCES.c.host,
                      INSTANCES.c.node, INSTANCES.c.flavor, INSTANCES.c.image, INSTANCES.c.block_devices)
    wanted = {uuid: _Want(instance.host, instance.node, _resources(instance, instance.flavor))
              for uuid, instance in instances.items()}
    for move in reversed(moving):  # Oldest last: it is running and decides; later ones are queued.
        instance = instances.get(move.instance_uuid)
        if instance is not None:
            wanted[move.instance_uuid] = _Want(move.source_compute, move.source_node,
                                               _resources(instance, move.old_flavor or instance.flavor))
            wanted[move.uuid] = _Want(move.dest_compute, move.dest_node,
                                      _resources(instance, move.new_flavor or instance.flavor))
    requested = set(keys)
    return {consumer: want for consumer, want in wanted.items() if consumer in requested}


def _wrong_claim(want: _Want | None, node: Any, consumer: str, root: str, held: list[Any]) -> Iterator[Finding]:
    """Return a finding if the claim of a consumer is wrong. ``held``: its allocations in the tree of ``root``."""
    if want is not None and (node is None or (want.host, want.node) == (node.host, node.hypervisor_hostname)):
        claimed = _summed(held)
        if claimed != want.resources:
            yield Finding("claim", consumer, f"{claimed} claimed, but the server's flavor requires {want.resources}",
                          subject=f"{consumer} on {root}")
        return
    why = "no such server or open migration" if want is None else f"the server is on {want.host}/{want.node}"
    yield Finding("claim", consumer, why, subject=f"{consumer} on {root}",
                  repair=functools.partial(allocations.release, consumer=consumer, root=root))


def _summed(held: list[Any]) -> dict[str, int]:
    """Return the sum of these allocations by resource class."""
    total: collections.Counter[str] = collections.Counter()
    for row in held:
        total.update(row.resources)
    return dict(total)


def _resources(instance: Any, flavor: Flavor) -> dict[str, int]:
    """Return the amounts that a server must claim with this flavor."""
    volume_backed = root_volume(instance.block_devices) is not None
    return requested_resources(flavor, instance.image, volume_backed, existing=True).total


class Usage(Check):
    """Check that the usage of inventories is the sum of the claims and within capacity. Subjects: providers."""

    page_size = 50
    subjects = sa.select(INVENTORIES.c.provider_uuid), sa.select(CLAIMS.c.provider_uuid)

    def lock(self, connection: sa.Connection, key: str) -> None:
        # Claims, releases and changes of external providers first lock the row of the node, or of a root without one.
        root = connection.scalar(sa.select(tables.providers.c.root_uuid).where(tables.providers.c.uuid == key))
        providers.hold(connection, [root or key])

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        claimed: collections.Counter[tuple[str, str]] = collections.Counter()
        for row in connection.execute(sa.select(CLAIMS.c.provider_uuid, CLAIMS.c.resources)
                                      .where(CLAIMS.c.provider_uuid.in_(keys))):
            for name, amount in row.resources.items():
                claimed[row.provider_uuid, name] += amount
        for row in connection.execute(sa.select(INVENTORIES).where(INVENTORIES.c.provider_uuid.in_(keys))
                                      .order_by(INVENTORIES.c.provider_uuid, INVENTORIES.c.resource_class)):
            right = claimed.pop((row.provider_uuid, row.resource_class), 0)
            # An inventory that is reserved completely is not offered now (a bare metal node in use); claims stay valid.
            reserved = row.reserved if row.reserved < row.total else 0
            subject, room = f"{row.provider_uuid} {row.resource_class}", (row.total - reserved) * row.ratio
            if row.used != right:
                this = sa.and_(INVENTORIES.c.provider_uuid == row.provider_uuid,
                               INVENTORIES.c.resource_class == row.resource_class)
                yield Finding("usage", row.provider_uuid, f"{row.used} used, but the claims sum up to {right}",
                              subject=subject, repair=put(INVENTORIES, this, used=right))
            if right > room:
                yield Finding("oversold", row.provider_uuid, f"{right} claimed, but the capacity is {room:g}",
                              subject=subject)
        for (provider, name), amount in claimed.items():
            yield Finding("usage", provider, f"{amount} claimed, but the provider has no such inventory",
                          subject=f"{provider} {name}")


class Counts(Check):
    """Check num_instances (claims of a node) and num_io_ops (builds and moves on a node). Subjects: nodes."""

    table = NODES
    subjects = (sa.select(NODES.c.uuid),)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        nodes = connection.execute(sa.select(
            NODES.c.uuid, NODES.c.host, NODES.c.hypervisor_hostname, NODES.c.num_instances, NODES.c.num_io_ops)
            .where(NODES.c.uuid.in_(keys)).order_by(NODES.c.uuid)).all()
        # Both columns have an index. A condition on the expression allocations.ROOT could not use an index.
        of_these = sa.or_(CLAIMS.c.root_uuid.in_(keys),
                          sa.and_(CLAIMS.c.root_uuid.is_(None), CLAIMS.c.provider_uuid.in_(keys)))
        claims: dict[str, int] = dict(connection.execute(
            sa.select(allocations.ROOT, sa.func.count(CLAIMS.c.consumer_uuid.distinct())).where(of_these, _OF_SERVERS)
            .group_by(allocations.ROOT)).all())
        builds = collections.Counter((row.host, row.node) for row in connection.execute(
            sa.select(INSTANCES.c.host, INSTANCES.c.node).where(
                INSTANCES.c.host.in_({node.host for node in nodes}), INSTANCES.c.deleted == sa.false(),
                INSTANCES.c.launched_at.is_(None), INSTANCES.c.vm_state == states.BUILDING)))
        coming: dict[str, int] = dict(connection.execute(
            sa.select(allocations.ROOT, sa.func.count(CLAIMS.c.consumer_uuid.distinct()))
            .join(MIGRATIONS, MIGRATIONS.c.uuid == CLAIMS.c.consumer_uuid)
            .where(of_these, MIGRATIONS.c.open == sa.true(), MIGRATIONS.c.status.not_in(_SETTLED))
            .group_by(allocations.ROOT)).all())
        for node in nodes:
            heavy = builds[node.host, node.hypervisor_hostname] + coming.get(node.uuid, 0)
            right = {"num_instances": claims.get(node.uuid, 0), "num_io_ops": heavy}
            wrong = {name: value for name, value in right.items() if getattr(node, name) != value}
            if wrong:
                fix = put(NODES, NODES.c.uuid == node.uuid, generation=NODES.c.generation + 1, **wrong)
                yield Finding("node", node.uuid, differences(node, wrong), repair=fix,
                              subject=f"{node.host}/{node.hypervisor_hostname}")


def differences(row: Any, right: dict[str, int]) -> str:
    """Return a description of the columns whose values differ from the counted values ``right``."""
    return ", ".join(f"{name} is {getattr(row, name)}, counted {value}" for name, value in right.items())


class DedicatedResources(Check):
    """Check the NUMA cells and devices of the claims on a node. Subjects: nodes."""

    page_size = 50
    table = NODES
    subjects = (sa.select(NODES.c.uuid).where(NODES.c.fitted == sa.true()),)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        nodes = {row.uuid: row for row in connection.execute(
            sa.select(NODES.c.uuid, NODES.c.numa_topology).where(NODES.c.uuid.in_(keys)))}
        claims = connection.execute(
            sa.select(CLAIMS.c.root_uuid, CLAIMS.c.consumer_uuid, CLAIMS.c.numa_topology, CLAIMS.c.pci_devices)
            .where(CLAIMS.c.root_uuid.in_(keys),
                   sa.or_(CLAIMS.c.numa_topology.is_not(None), CLAIMS.c.pci_devices.is_not(None)))
            .order_by(CLAIMS.c.consumer_uuid)).all()
        held: dict[str, list[GuestDedicatedResources]] = collections.defaultdict(list)
        for row in claims:
            held[row.root_uuid].append(
                GuestDedicatedResources(numa_topology=row.numa_topology, pci_devices=row.pci_devices))
        for uuid, node in nodes.items():
            for conflict in fitting.conflicts(node.numa_topology, held[uuid]):
                yield Finding("dedicated resources", uuid, conflict)
        yield from _wrong_servers(connection, claims)


def _wrong_servers(connection: sa.Connection, claims: Sequence[Any]) -> Iterator[Finding]:
    """Return findings for servers that use other NUMA cells or devices than those of their claim. Servers with an open
    migration are skipped, since they may use those of the migration's claim."""
    uuids = [row.consumer_uuid for row in claims]
    moving = set(connection.scalars(sa.select(MIGRATIONS.c.instance_uuid).where(
        MIGRATIONS.c.instance_uuid.in_(uuids), MIGRATIONS.c.open == sa.true())))
    servers = alive(connection, uuids, INSTANCES.c.numa_topology, INSTANCES.c.pci_devices)
    for row in claims:
        server = servers.get(row.consumer_uuid)
        if server is not None and row.consumer_uuid not in moving and (
                server.numa_topology, server.pci_devices) != (row.numa_topology, row.pci_devices):
            yield Finding("dedicated resources", row.root_uuid, subject=row.consumer_uuid,
                          detail="the server uses other NUMA cells or devices than its claim has")
