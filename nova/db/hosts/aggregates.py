"""Host aggregates and availability zones. There are few aggregates, with long lists of hosts: rules about several
aggregates are checked while all rows are locked."""

from collections.abc import Iterable, Sequence

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import precaches
from nova.db.sql import clock, rows
from nova.objects.base import new_uuid
from nova.objects.hosts.aggregate import Aggregate

TABLE = tables.aggregates
INSTANCES = tables.instances
SERVICES = tables.services

ZONE = "availability_zone"


def index(connection: sa.Connection, lock: bool = False) -> list[Aggregate]:
    """Return all aggregates, oldest first."""
    statement = sa.select(TABLE).order_by(TABLE.c.id)
    return rows.to_objects(Aggregate, connection.execute(statement.with_for_update() if lock else statement))


def get(connection: sa.Connection, aggregate_id: int) -> Aggregate:
    """Return an aggregate. Raises AggregateNotFound."""
    return rows.first(connection, Aggregate, sa.select(TABLE).where(rows.has_id(TABLE, aggregate_id)),
                      exception.AggregateNotFound(aggregate_id=aggregate_id))


def of_host(connection: sa.Connection, host: str) -> list[Aggregate]:
    """Return the aggregates of a host, oldest first. Other rows, whose lists of hosts may be long, are not read."""
    named = sa.type_coerce(TABLE.c.hosts, sa.Text).contains(msgspec.json.encode(host).decode(), autoescape=True)
    aggregates = rows.to_objects(Aggregate, connection.execute(sa.select(TABLE).where(named).order_by(TABLE.c.id)))
    return [aggregate for aggregate in aggregates if host in aggregate.hosts]


def lock(connection: sa.Connection, aggregate_id: int) -> Aggregate:
    """Return an aggregate. No aggregate can change until the transaction ends. Raises AggregateNotFound."""
    return _held(connection, aggregate_id)[1]


# --- zones -----------------------------------------------------------------------------------
def host_zones(aggregates: Iterable[Aggregate]) -> dict[str, str]:
    """Return host -> zone of the first aggregate of the host that has a zone. Other hosts are in the default zone."""
    zones: dict[str, str] = {}
    for aggregate in aggregates:
        zone = aggregate.metadata.get(ZONE)
        if zone:
            for host in aggregate.hosts:
                zones.setdefault(host, zone)
    return zones


def zone_of(connection: sa.Connection, host: str) -> str:
    return host_zones(of_host(connection, host)).get(host, str(CONF.default_availability_zone))


def zones(connection: sa.Connection) -> set[str]:
    """Return the zones that can be requested: those with an enabled compute service."""
    by_host = host_zones(index(connection))
    hosts = connection.scalars(sa.select(SERVICES.c.host).where(
        SERVICES.c.binary == "nova-compute", SERVICES.c.disabled == sa.false()))
    return {by_host.get(host, CONF.default_availability_zone) for host in hosts}


# --- changes ---------------------------------------------------------------------------------
def create(connection: sa.Connection, name: str, availability_zone: str | None = None) -> Aggregate:
    """Insert an aggregate. Raises AggregateNameExists."""
    metadata = {ZONE: availability_zone} if availability_zone else {}
    aggregate = Aggregate(uuid=new_uuid(), name=name, metadata=metadata, created_at=clock.now())
    with rows.on_duplicate(exception.AggregateNameExists(aggregate_name=name)):
        connection.execute(sa.insert(TABLE).values(rows.values_of(TABLE, aggregate)))
    row = connection.execute(sa.select(TABLE).where(TABLE.c.uuid == aggregate.uuid)).one()
    return rows.to_object(Aggregate, row)


def update(connection: sa.Connection, aggregate_id: int, name: str | None, zone: str | None) -> Aggregate:
    """Rename an aggregate or change its zone. Raises AggregateNotFound, AggregateNameExists, InvalidAggregateAction."""
    everything, aggregate = _held(connection, aggregate_id)
    if name is not None and name != aggregate.name:
        if any(other.name == name for other in everything):
            raise exception.AggregateNameExists(aggregate_name=name)
        aggregate.name = name
    if zone is not None:
        _change_metadata(connection, everything, aggregate, {ZONE: zone}, "update")
    with rows.on_duplicate(exception.AggregateNameExists(aggregate_name=name)):
        _save(connection, aggregate)
    return aggregate


def set_metadata(connection: sa.Connection, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
    """Merge metadata; None deletes a key. Raises AggregateNotFound, InvalidAggregateAction."""
    everything, aggregate = _held(connection, aggregate_id)
    _change_metadata(connection, everything, aggregate, metadata, "set metadata")
    return _save(connection, aggregate)


def delete(connection: sa.Connection, aggregate_id: int) -> None:
    """Delete an aggregate. Raises AggregateNotFound, InvalidAggregateAction (it has hosts)."""
    _everything, aggregate = _held(connection, aggregate_id)
    if aggregate.hosts:
        raise exception.InvalidAggregateAction(action="delete", aggregate_id=aggregate_id,
                                               reason="the aggregate is not empty")
    connection.execute(sa.delete(TABLE).where(TABLE.c.id == aggregate_id))


def add_host(connection: sa.Connection, aggregate_id: int, host: str) -> Aggregate:
    """Add a host. Raises AggregateNotFound, ComputeHostNotFound, AggregateHostExists, AggregateHostConflict."""
    everything, aggregate = _held(connection, aggregate_id)
    if host in aggregate.hosts:
        raise exception.AggregateHostExists(aggregate_id=aggregate_id, host=host)
    service_id = connection.scalar(sa.select(SERVICES.c.id).where(
        SERVICES.c.host == host, SERVICES.c.binary == "nova-compute"))
    if service_id is None:
        raise exception.ComputeHostNotFound(host=host)
    before = host_zones(everything)
    aggregate.hosts.append(host)
    if problem := _zone_problem(connection, before, everything, aggregate, [host]):
        raise exception.AggregateHostConflict(action="add host", aggregate_id=aggregate_id, reason=problem)
    return _save(connection, aggregate)


def remove_host(connection: sa.Connection, aggregate_id: int, host: str) -> Aggregate:
    """Remove a host. Raises AggregateNotFound, AggregateHostNotFound, AggregateHostConflict."""
    everything, aggregate = _held(connection, aggregate_id)
    if host not in aggregate.hosts:
        raise exception.AggregateHostNotFound(aggregate_id=aggregate_id, host=host)
    before = host_zones(everything)
    aggregate.hosts.remove(host)
    if problem := _zone_problem(connection, before, everything, aggregate, [host]):
        raise exception.AggregateHostConflict(action="remove host", aggregate_id=aggregate_id, reason=problem)
    precaches.forget(connection, host, aggregate_id)
    return _save(connection, aggregate)


def forget_host(connection: sa.Connection, host: str) -> bool:
    """Remove a deleted host from all aggregates; return True if it was in one."""
    aggregates = [aggregate for aggregate in index(connection, lock=True) if host in aggregate.hosts]
    for aggregate in aggregates:
        aggregate.hosts.remove(host)
        _save(connection, aggregate)
    return bool(aggregates)


def _held(connection: sa.Connection, aggregate_id: int) -> tuple[list[Aggregate], Aggregate]:
    """Lock all aggregates until the transaction ends; return all, and the one with this id."""
    everything = index(connection, lock=True)
    for aggregate in everything:
        if aggregate.id == aggregate_id:
            # Copies, since callers change the list and the dictionary in place.
            aggregate.hosts, aggregate.metadata = list(aggregate.hosts), dict(aggregate.metadata)
            return everything, aggregate
    raise exception.AggregateNotFound(aggregate_id=aggregate_id)


def _save(connection: sa.Connection, aggregate: Aggregate) -> Aggregate:
    aggregate.updated_at = clock.now()
    connection.execute(sa.update(TABLE).where(TABLE.c.id == aggregate.id).values(
        name=aggregate.name, hosts=aggregate.hosts, metadata=aggregate.metadata, updated_at=aggregate.updated_at))
    return aggregate


def _change_metadata(connection: sa.Connection, everything: list[Aggregate], aggregate: Aggregate,
                     changes: dict[str, str | None], action: str) -> None:
    before = host_zones(everything)
    for key, value in changes.items():
        if value is None:
            aggregate.metadata.pop(key, None)
        else:
            aggregate.metadata[key] = value
    if ZONE in changes and (problem := _zone_problem(connection, before, everything, aggregate, aggregate.hosts)):
        raise exception.InvalidAggregateAction(action=action, aggregate_id=aggregate.id, reason=problem)


def _zone_problem(connection: sa.Connection, before: dict[str, str], everything: Iterable[Aggregate],
                  aggregate: Aggregate, hosts: Sequence[str]) -> str | None:
    """Return why these hosts forbid the change made in memory to ``aggregate`` (of ``everything``), or None."""
    zone = aggregate.metadata.get(ZONE)
    for other in everything:
        other_zone = other.metadata.get(ZONE)
        if other is aggregate or not zone or not other_zone or other_zone == zone:
            continue
        both = [host for host in hosts if host in aggregate.hosts and host in other.hosts]
        if both:
            return f"host {both[0]} is already in availability zone {other_zone}"
    default = CONF.default_availability_zone
    after = host_zones(everything)
    moved = [host for host in hosts if before.get(host, default) != after.get(host, default)]
    busy = connection.scalar(sa.select(INSTANCES.c.host).where(
        INSTANCES.c.host.in_(moved), INSTANCES.c.deleted == sa.false()).limit(1)) if moved else None
    return f"host {busy} has servers, and its availability zone would change" if busy else None
