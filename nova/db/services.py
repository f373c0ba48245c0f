"""Services: who is registered, who is alive."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.conf import CONF
from nova.db import aggregates, clock, models, rows
from nova.objects.base import new_uuid, utcnow
from nova.objects.compute import Load, Service

TABLE = models.services
COMPUTE = "nova-compute"
# Known to operators of this deployment only: os-services never lists them.
HIDDEN = frozenset({"nova-api"})


# --- reading ---------------------------------------------------------------------------------
def shown(row: sa.Row[Any], zones: dict[str, str], now: datetime.datetime) -> Service:
    """The service as os-services shows it: liveness at ``now``, its zone, its last sign of life."""
    service = rows.to_object(Service, row)
    service.last_seen_up = row.last_seen
    alive = row.last_seen is not None and (now - row.last_seen).total_seconds() <= CONF.service_down_time
    service.up = alive and not service.forced_down
    if row.last_seen is not None:
        service.updated_at = max(row.last_seen, row.updated_at or row.last_seen)
    service.availability_zone = zones.get(service.host, CONF.default_availability_zone) if service.binary == COMPUTE \
        else CONF.internal_service_availability_zone
    return service


def effective(service: Service, up: bool) -> tuple[bool, bool]:
    """(up, disabled) as schedulers are told; ``up`` is the row's."""
    return up and not service.forced_down, service.disabled


def _fill(connection: sa.Connection, found: Iterable[sa.Row[Any]]) -> list[Service]:
    zones, now = aggregates.host_zones(aggregates.index(connection)), clock.now()
    return [shown(row, zones, now) for row in found]


def index(connection: sa.Connection, host: str | None = None, binary: str | None = None,
          hidden: bool = False) -> list[Service]:
    """All services, or those of a host or with a binary, oldest first; with ``hidden``, also those of the API."""
    statement = sa.select(TABLE).order_by(TABLE.c.id)
    if not hidden:
        statement = statement.where(TABLE.c.binary.not_in(HIDDEN))
    if host is not None:
        statement = statement.where(TABLE.c.host == host)
    if binary is not None:
        statement = statement.where(TABLE.c.binary == binary)
    return _fill(connection, connection.execute(statement).all())


def get(connection: sa.Connection, service_id: str) -> Service:
    """By uuid or integer id. Raises ServiceNotFound."""
    return _fill(connection, [_row(connection, service_id)])[0]


def _row(connection: sa.Connection, service_id: str, lock: bool = False) -> sa.Row[Any]:
    known = TABLE.c.id == int(service_id) if service_id.isdecimal() and int(service_id) < 2**63 \
        else TABLE.c.uuid == service_id
    statement = sa.select(TABLE).where(known)
    row = connection.execute(statement.with_for_update() if lock else statement).first()
    if row is None:
        raise exception.ServiceNotFound(service_id=service_id)
    return row


def uuid_of(connection: sa.Connection, host: str, binary: str) -> str:
    """Raises HostBinaryNotFound."""
    uuid = connection.scalar(sa.select(TABLE.c.uuid).where(TABLE.c.host == host, TABLE.c.binary == binary))
    if uuid is None:
        raise exception.HostBinaryNotFound(binary=binary, host=host)
    return str(uuid)


def host_up(connection: sa.Connection, host: str, lock: bool = False) -> bool:
    """Is the compute service of the host alive (and not forced down)? False where there is none.

    ``lock``: it stays as it is until the transaction ends.
    """
    statement = sa.select(TABLE).where(TABLE.c.host == host, TABLE.c.binary == COMPUTE)
    row = connection.execute(statement.with_for_update() if lock else statement).first()
    return row is not None and shown(row, {}, clock.now()).up


def still_down(connection: sa.Connection, host: str) -> None:
    """For a transaction that gives up a host: it must not be back, nor come back before the commit.

    Its next sign of life waits for the commit, so that what the host compares its guests with then is what was
    decided without it. Raises ServiceUnavailable.
    """
    if host_up(connection, host, lock=True):
        raise exception.ServiceUnavailable(f"Host {host} is back and will be asked again.")


def forced_down(connection: sa.Connection, host: str) -> bool:
    """Did an operator say that the host is down? Then nobody waits for it."""
    return connection.scalar(sa.select(TABLE.c.id).where(
        TABLE.c.host == host, TABLE.c.binary == COMPUTE, TABLE.c.forced_down == sa.true())) is not None


def compute_exists(connection: sa.Connection, host: str) -> bool:
    return connection.scalar(sa.select(TABLE.c.id).where(
        TABLE.c.host == host, TABLE.c.binary == COMPUTE)) is not None


def flags(connection: sa.Connection, hosts: Collection[str]) -> dict[str, tuple[bool, bool]]:
    """(up, disabled) as schedulers are told, for the hosts among these that have a compute."""
    if not hosts:
        return {}
    found = connection.execute(sa.select(TABLE).where(TABLE.c.host.in_(hosts), TABLE.c.binary == COMPUTE))
    return {row.host: (row.up and not row.forced_down, row.disabled) for row in found}


# --- liveness --------------------------------------------------------------------------------
def register(connection: sa.Connection, host: str, binary: str, topic: str, version: int) -> Service:
    """A service started: make or renew its row, alive from now on."""
    now = clock.now()
    this = sa.and_(TABLE.c.host == host, TABLE.c.binary == binary)
    renewed = connection.execute(sa.update(TABLE).where(this).values(
        topic=topic, version=version, up=True, last_seen=now, updated_at=now))
    if renewed.rowcount == 0:
        disabled = binary == COMPUTE and not CONF.enable_new_services
        try:
            connection.execute(sa.insert(TABLE).values(
                uuid=new_uuid(), host=host, binary=binary, topic=topic, version=version, up=True, last_seen=now,
                disabled=disabled, forced_down=False, created_at=now,
                disabled_reason="New computes are disabled (enable_new_services)." if disabled else None))
        except db_exception.DBDuplicateEntry as error:  # it started twice at the same moment
            raise db_exception.RetryRequest(error) from error
    return _fill(connection, connection.execute(sa.select(TABLE).where(this)).all())[0]


def beat(connection: sa.Connection, host: str, binary: str, load: Sequence[Load] | None = None) -> Service | None:
    """A sign of life; answers the service if it was down until now. Raises HostBinaryNotFound."""
    this = sa.and_(TABLE.c.host == host, TABLE.c.binary == binary)
    now = clock.now()
    noted = connection.execute(sa.update(TABLE).where(this, TABLE.c.up == sa.true()).values(
        last_seen=now, load=load))
    if noted.rowcount:
        return None
    noted = connection.execute(sa.update(TABLE).where(this).values(last_seen=now, up=True, load=load))
    if noted.rowcount == 0:
        raise exception.HostBinaryNotFound(binary=binary, host=host)
    return rows.to_object(Service, connection.execute(sa.select(TABLE).where(this)).one())


def beat_all(connection: sa.Connection, hosts: Collection[str], binary: str) -> tuple[list[Service], list[str]]:
    """Signs of life of several hosts: the services that were down until now, and the hosts without one.

    One statement as long as nothing is out of the ordinary.
    """
    if not hosts:
        return [], []
    these, now = sa.and_(TABLE.c.binary == binary, TABLE.c.host.in_(hosts)), clock.now()
    noted = connection.execute(sa.update(TABLE).where(these, TABLE.c.up == sa.true()).values(last_seen=now))
    if noted.rowcount == len(set(hosts)):
        return [], []
    found = connection.execute(sa.select(TABLE).where(these).with_for_update()).all()
    returned = [row for row in found if not row.up]
    if returned:
        connection.execute(sa.update(TABLE).where(TABLE.c.id.in_([row.id for row in returned]))
                           .values(last_seen=now, up=True))
    unknown = set(hosts) - {row.host for row in found}
    return [rows.to_object(Service, row) for row in returned], sorted(unknown)


def last_heard(connection: sa.Connection) -> datetime.datetime | None:
    """The newest sign of life that came as a message (conductors write theirs); None where there are no services."""
    found: datetime.datetime | None = connection.scalar(
        sa.select(sa.func.max(TABLE.c.last_seen)).where(TABLE.c.binary != "nova-conductor"))
    return found


def mark_down(connection: sa.Connection, before: datetime.datetime) -> list[str]:
    """Services not heard of since ``before`` are down from now on; answers the hosts of new ones."""
    silent = sa.and_(TABLE.c.last_seen < before, TABLE.c.up == sa.true())
    found = connection.execute(sa.select(TABLE.c.id, TABLE.c.host).where(silent).with_for_update()).all()
    if found:
        connection.execute(sa.update(TABLE).where(TABLE.c.id.in_([row.id for row in found])).values(up=False))
    return sorted({row.host for row in found})


# --- operators -------------------------------------------------------------------------------
def update(connection: sa.Connection, service_id: str, disabled: bool | None, reason: str | None,
           forced_down: bool | None) -> tuple[Service, bool]:
    """Change what operators may (None: as it is); answers the service and whether its row counts as up.

    Raises ServiceNotFound.
    """
    row = _row(connection, service_id, lock=True)
    values: dict[str, Any] = {"updated_at": utcnow()}
    if disabled is not None:
        values.update(disabled=disabled, disabled_reason=reason if disabled else None)
    elif reason is not None:
        values["disabled_reason"] = reason
    if forced_down is not None:
        values["forced_down"] = forced_down
    connection.execute(sa.update(TABLE).where(TABLE.c.id == row.id).values(values))
    return get(connection, str(row.id)), row.up


def lock(connection: sa.Connection, service_id: str) -> Service:
    """The service, held until the transaction ends. Raises ServiceNotFound."""
    return rows.to_object(Service, _row(connection, service_id, lock=True))


def delete(connection: sa.Connection, service: Service) -> None:
    connection.execute(sa.delete(TABLE).where(TABLE.c.id == service.id))


def zone_is_available(connection: sa.Connection, zone: str) -> bool:
    """Whether there is an enabled compute service in the zone. Two statements, whatever there are of services."""
    zones = aggregates.host_zones(aggregates.index(connection))
    hosts = [host for host, its_zone in zones.items() if its_zone == zone]
    somewhere: sa.ColumnElement[bool] = TABLE.c.host.in_(hosts)
    if zone == CONF.default_availability_zone:
        somewhere = sa.or_(somewhere, TABLE.c.host.not_in(list(zones)))
    return connection.scalar(sa.select(TABLE.c.id).where(
        TABLE.c.binary == COMPUTE, TABLE.c.disabled == sa.false(), somewhere).limit(1)) is not None
