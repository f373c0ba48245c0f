"""Servers: their addresses, their operations and their security groups. Subjects: instances."""

import collections
from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from nova.db import tables
from nova.db.audit.base import Check, Finding, alive, hold, put, run
from nova.db.networks import fixed_ips
from nova.db.sql import clock
from nova.objects.servers import states

ACTIONS = tables.actions
EVICTIONS = tables.evictions
INSTANCES = tables.instances
IPS = tables.fixed_ips
FLOATING = tables.floating_ips
MEMBERS = tables.security_group_members


class Addresses(Check):
    """Check that each fixed address is reserved for one existing server that has it in its network info. Allocations
    and releases of addresses also write the instance, so they wait for the lock of its row."""

    subjects = (sa.select(IPS.c.instance_uuid).where(IPS.c.instance_uuid.is_not(None)),
                sa.select(INSTANCES.c.uuid).where(INSTANCES.c.deleted == sa.false(), INSTANCES.c.addresses != ""))

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        instances = alive(connection, keys, INSTANCES.c.network_info)
        used = {(vif.network_id, address): uuid for uuid, instance in instances.items()
                for vif in instance.network_info if not vif.outside for address in vif.addresses()}
        held = {(row.network_uuid, row.address): row for row in connection.execute(
            sa.select(IPS).where(IPS.c.instance_uuid.in_(keys)).order_by(IPS.c.id))}
        for (network, address), row in held.items():
            if used.get((network, address)) != row.instance_uuid:
                this = sa.and_(IPS.c.id == row.id, IPS.c.instance_uuid == row.instance_uuid)
                yield Finding("address", row.instance_uuid, subject=address,
                              detail=f"reserved for server {row.instance_uuid}, which does not use it",
                              repair=put(IPS, this, instance_uuid=None, vif_id=None, updated_at=clock.now()))
        for (network, address), uuid in used.items():
            ours = held.get((network, address))
            holder = ours.instance_uuid if ours else fixed_ips.owner_of(connection, network, address)
            if holder != uuid:
                yield Finding("address", uuid, f"used by server {uuid}, but reserved for {holder or 'no server'}",
                              subject=address)


class FloatingAddresses(Check):
    """Check that floating addresses and interfaces refer to each other."""

    subjects = (sa.select(FLOATING.c.instance_uuid).where(FLOATING.c.instance_uuid.is_not(None)),)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        used = {(uuid, vif.id, vif.floating) for uuid, instance in alive(
            connection, keys, INSTANCES.c.network_info).items() for vif in instance.network_info}
        for row in connection.execute(
                sa.select(FLOATING).where(FLOATING.c.instance_uuid.in_(keys)).order_by(FLOATING.c.id)):
            if (row.instance_uuid, row.vif_id, row.address) not in used:
                this = sa.and_(FLOATING.c.id == row.id, FLOATING.c.instance_uuid == row.instance_uuid)
                yield Finding("floating address", row.instance_uuid, f"associated with server {row.instance_uuid}, "
                              "whose network info lacks it", subject=row.address,
                              repair=put(FLOATING, this, instance_uuid=None, vif_id=None, fixed_address=None))


class Operations(Check):
    """Check that an instance with a task state has a running action, and that each open action has an instance."""

    subjects = (sa.select(ACTIONS.c.instance_uuid).where(ACTIONS.c.outcome.is_(None)),
                sa.select(INSTANCES.c.uuid).where(INSTANCES.c.deleted == sa.false(), sa.or_(
                    INSTANCES.c.task_state.is_not(None), INSTANCES.c.action_uuid.is_not(None),
                    INSTANCES.c.vm_state == states.BUILDING)))

    def lock(self, connection: sa.Connection, key: str) -> None:
        hold(connection, ACTIONS, sa.and_(ACTIONS.c.instance_uuid == key, ACTIONS.c.outcome.is_(None)))
        super().lock(connection, key)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        instances = alive(connection, keys, INSTANCES.c.vm_state, INSTANCES.c.task_state, INSTANCES.c.action_uuid)
        open_actions = connection.execute(
            sa.select(ACTIONS.c.uuid, ACTIONS.c.instance_uuid, ACTIONS.c.action, ACTIONS.c.queued,
                      ACTIONS.c.lease_until).where(
                ACTIONS.c.instance_uuid.in_(keys), ACTIONS.c.outcome.is_(None)).order_by(ACTIONS.c.id)).all()
        open_uuids = {action.uuid for action in open_actions}
        for uuid, instance in instances.items():
            if (instance.task_state or instance.action_uuid) and instance.action_uuid not in open_uuids:
                yield Finding("task", uuid, f"task_state is {instance.task_state}, but no action is running",
                              repair=put(INSTANCES, INSTANCES.c.uuid == uuid, task_state=None, action_uuid=None))
            elif instance.vm_state == states.BUILDING and instance.action_uuid is None:
                yield Finding("task", uuid, "vm_state is building, but no action builds the server")
        for action in open_actions:
            instance = instances.get(action.instance_uuid)
            # A queued action starts when the running action of the server ends, or when the queued one's lease expires.
            if instance is None or (instance.action_uuid is None and action.lease_until is None if action.queued
                                    else instance.action_uuid != action.uuid):
                end = put(ACTIONS, ACTIONS.c.uuid == action.uuid, outcome="superseded", finish_time=clock.now())
                yield Finding("action", action.instance_uuid,
                              f"{action.action} of server {action.instance_uuid} has not ended, but the server is not "
                              "locked by it", subject=action.uuid, repair=end)


class Members(Check):
    """Check that the servers in security groups exist."""

    subjects = (sa.select(MEMBERS.c.instance_uuid),)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        dead = set(keys) - alive(connection, keys).keys()
        groups: dict[str, list[int]] = collections.defaultdict(list)
        for row in connection.execute(sa.select(MEMBERS).where(MEMBERS.c.instance_uuid.in_(dead))):
            groups[row.instance_uuid].append(row.group_id)
        for uuid, of in sorted(groups.items()):
            yield Finding("security group", uuid, f"server {uuid} is a member but does not exist",
                          subject=", ".join(map(str, sorted(of))),
                          repair=run(sa.delete(MEMBERS).where(MEMBERS.c.instance_uuid == uuid)))


class Evictions(Check):
    """Check that no guest is marked for removal on a host where its server runs."""

    subjects = (sa.select(EVICTIONS.c.instance_uuid),)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        # Servers with a running operation are skipped: it may still move the server away from the host.
        settled = {uuid: row.host for uuid, row in alive(
            connection, keys, INSTANCES.c.host, INSTANCES.c.action_uuid).items() if row.action_uuid is None}
        for row in connection.execute(sa.select(EVICTIONS).where(EVICTIONS.c.instance_uuid.in_(list(settled)))):
            if settled[row.instance_uuid] == row.host:
                this = sa.and_(EVICTIONS.c.instance_uuid == row.instance_uuid, EVICTIONS.c.host == row.host)
                yield Finding("eviction", row.instance_uuid,
                              f"guest to be removed from {row.host}, but its server is there",
                              repair=run(sa.delete(EVICTIONS).where(this)))
