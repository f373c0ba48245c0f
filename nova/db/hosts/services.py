"""Services: registration and liveness. A host stores the id of the deployment with which it registered. The host does
not start if the database is of another deployment or from before the registration: it would not contain its guests."""

import datetime
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import liveness, tables
from nova.db.hosts import aggregates, network_hosts
from nova.db.servers import server_migrations
from nova.db.sql import clock, rows
from nova.objects.base import new_uuid
from nova.objects.hosts.scheduling import ServiceFlags
from nova.objects.hosts.service import Service, WorkerStats

TABLE = tables.services
DELETED_HOSTS = tables.deleted_hosts
COMPUTE = "nova-compute"
_NEXT = TABLE.c.generation + 1
HIDDEN = frozenset({"nova-api"})  # hidden from os-services; visible only to operators of this deployment
_WAY_OUT = "remove the file \"deployment\" in its state_path"


# --- reading ---------------------------------------------------------------------------------
def shown(row: sa.Row[Any], zones: dict[str, str], now: datetime.datetime) -> Service:
    """Return the service as os-services shows it: liveness at ``now``, zone, last heartbeat."""
    service = rows.to_object(Service, row)
    service.last_seen_up = row.last_seen
    service.up = liveness.is_alive(row, now) and not service.forced_down
    if row.last_seen is not None:
        service.updated_at = max(row.last_seen, row.updated_at or row.last_seen)
    service.availability_zone = zones.get(service.host, CONF.default_availability_zone) if service.binary == COMPUTE \
        else CONF.internal_service_availability_zone
    return service


def effective(service: Service, up: bool) -> ServiceFlags:
    """Return the state of a service for schedulers. ``up``: True if the service is alive."""
    return ServiceFlags(up=up and not service.forced_down, disabled=service.disabled, generation=service.generation)


def _fill(connection: sa.Connection, rows: Iterable[sa.Row[Any]]) -> list[Service]:
    zones, now = aggregates.host_zones(aggregates.index(connection)), clock.now()
    return [shown(row, zones, now) for row in rows]


def index(connection: sa.Connection, host: str | None = None, binary: str | None = None,
          hidden: bool = False) -> list[Service]:
    """Return services (of a host, with a binary), oldest first; with ``hidden``, also those of nova-api."""
    statement = sa.select(TABLE).where(*rows.equal(TABLE.c.host, host), *rows.equal(TABLE.c.binary, binary))
    statement = statement.order_by(TABLE.c.id)
    if not hidden:
        statement = statement.where(TABLE.c.binary.not_in(HIDDEN))
    return _fill(connection, connection.execute(statement).all())


def get(connection: sa.Connection, service_id: str) -> Service:
    """Return a service by uuid or integer id. Raises ServiceNotFound."""
    return _fill(connection, [_row(connection, service_id)])[0]


def _row(connection: sa.Connection, service_id: str, lock: bool = False) -> sa.Row[Any]:
    statement = sa.select(TABLE).where(rows.identified(TABLE, service_id))
    row = connection.execute(statement.with_for_update() if lock else statement).first()
    if row is None:
        raise exception.ServiceNotFound(service_id=service_id)
    return row


def uuid_of(connection: sa.Connection, host: str, binary: str) -> str:
    """Return the uuid of a service. Raises HostBinaryNotFound."""
    uuid = connection.scalar(sa.select(TABLE.c.uuid).where(TABLE.c.host == host, TABLE.c.binary == binary))
    if uuid is None:
        raise exception.HostBinaryNotFound(binary=binary, host=host)
    return str(uuid)


def compute_version(connection: sa.Connection, host: str) -> int | None:
    """Return the service version of the host's nova-compute, or None if the host has no nova-compute."""
    return connection.scalar(sa.select(TABLE.c.version).where(TABLE.c.host == host, TABLE.c.binary == COMPUTE))


def host_up(connection: sa.Connection, host: str, lock: bool = False) -> bool:
    """Return True if the compute service of the host is alive (and not forced down); False where there is none.
    ``lock``: lock the row until the transaction ends."""
    # Read the time of the database in the same statement, since the clock may have jumped after the previous reading.
    statement = sa.select(TABLE, clock.column(connection)).where(TABLE.c.host == host, TABLE.c.binary == COMPUTE)
    started = time.monotonic()
    row = connection.execute(statement.with_for_update() if lock else statement).first()
    if row is None:
        return False
    clock.record(row.database_time, started)
    return not row.forced_down and liveness.is_alive(row, clock.now())


def awake(connection: sa.Connection, host: str) -> str | None:
    """Return ``host`` (if "": the host with the newest heartbeat) if its compute service is up, else None."""
    if host:
        return host if host_up(connection, host) else None
    row = connection.execute(sa.select(TABLE).where(
        TABLE.c.binary == COMPUTE, TABLE.c.forced_down == sa.false(), TABLE.c.last_seen.is_not(None))
        .order_by(TABLE.c.last_seen.desc()).limit(1)).first()
    return str(row.host) if row is not None and shown(row, {}, clock.now()).up else None


def still_down(connection: sa.Connection, host: str) -> None:
    """Lock the service of a host that is down until the transaction ends. Raises ServiceUnavailable if it is up again.
    The next heartbeat of the host waits for the commit; after it, the host compares its guests with the new rows."""
    if host_up(connection, host, lock=True):
        raise exception.ServiceUnavailable(f"Host {host} is up again; repeat the request.")


def forced_down(connection: sa.Connection, host: str) -> bool:
    """Return True if an operator forced the host down, so that no operation waits for it."""
    return connection.scalar(sa.select(TABLE.c.id).where(
        TABLE.c.host == host, TABLE.c.binary == COMPUTE, TABLE.c.forced_down == sa.true())) is not None


def compute_exists(connection: sa.Connection, host: str) -> bool:
    return connection.scalar(sa.select(TABLE.c.id).where(TABLE.c.host == host, TABLE.c.binary == COMPUTE)) is not None


def flags(connection: sa.Connection, hosts: Collection[str]) -> dict[str, ServiceFlags]:
    """Return host -> state for schedulers; hosts without a compute service are missing."""
    if not hosts:
        return {}
    services = connection.execute(sa.select(TABLE).where(TABLE.c.host.in_(hosts), TABLE.c.binary == COMPUTE))
    return {row.host: ServiceFlags(up=row.up and not row.forced_down, disabled=row.disabled, generation=row.generation)
            for row in services}


# --- liveness --------------------------------------------------------------------------------
def register(connection: sa.Connection, host: str, binary: str, topic: str, version: int,
             identity: str | None = None, connector: dict[str, Any] | None = None,
             belongs_to: str | None = None, returning: bool = False) -> Service:
    """Create or renew the row of a started service, alive from now on. Raises HostIdentityMismatch if the row belongs
    to another machine than ``identity``, if ``belongs_to`` is another deployment, or if the row is missing although the
    host is ``returning``."""
    if belongs_to is not None and belongs_to != (deployment := _deployment(connection)):
        raise exception.HostIdentityMismatch(host=host, reason=(
            f"it belongs to deployment {belongs_to}, and this database is of deployment {deployment}. Is "
            "this the right database ([database]connection of the conductors), and the right broker? If the host shall "
            f"belong to this one from now on, {_WAY_OUT}."))
    now = clock.now()
    this = sa.and_(TABLE.c.host == host, TABLE.c.binary == binary)
    values: dict[str, Any] = {"topic": topic, "version": version, "up": True, "last_seen": now}
    if identity:
        _identify(connection, host, binary, identity)
        values["identity"] = identity
    if connector is not None:
        values["connector"] = connector
    with rows.on_duplicate():
        if connection.execute(sa.update(TABLE).where(this).values(
                **values, updated_at=now, generation=_NEXT)).rowcount == 0:
            _admit(connection, host, identity, returning)
            disabled = binary == COMPUTE and not CONF.enable_new_services
            connection.execute(sa.insert(TABLE).values(
                **values, uuid=new_uuid(), host=host, binary=binary, disabled=disabled, forced_down=False,
                # The generation must be greater than that of an earlier, deleted service of the host.
                created_at=now, generation=int(now.timestamp()),
                disabled_reason="New computes are disabled (enable_new_services)." if disabled else None))
    service = _fill(connection, connection.execute(sa.select(TABLE).where(this)).all())[0]
    service.deployment = _deployment(connection)
    return service


def connector(connection: sa.Connection, host: str) -> dict[str, Any] | None:
    """Return the volume connector that the compute service of the host reported, or None."""
    return connection.execute(sa.select(TABLE.c.connector).where(
        TABLE.c.host == host, TABLE.c.binary == COMPUTE)).scalar()


def _identify(connection: sa.Connection, host: str, binary: str, identity: str) -> None:
    """Check that the row of the host, and no other row, belongs to this machine. Raises HostIdentityMismatch."""
    for row in connection.execute(sa.select(TABLE.c.host, TABLE.c.binary, TABLE.c.identity).where(sa.or_(
            TABLE.c.identity == identity, sa.and_(TABLE.c.host == host, TABLE.c.binary == binary))).with_for_update()):
        if (row.host, row.binary) != (host, binary):
            raise exception.HostIdentityMismatch(host=host, reason=(
                f"its machine is registered as {row.binary} of host {row.host}. If it was renamed, move its servers "
                "away and delete that service first; if it is a copy, give it an identity of its own (now "
                f"{identity})."))
        if row.identity not in (None, identity):
            raise exception.HostIdentityMismatch(host=host, reason=(
                f"another machine is registered by this name, with identity {row.identity}; this one is {identity}. "
                "If the machine was reinstalled, restore its old identity, or delete the service first."))


def beat(connection: sa.Connection, host: str, binary: str,
         load: Sequence[WorkerStats] | None = None) -> Service | None:
    """Record a heartbeat; return the service if it was down before. Raises HostBinaryNotFound."""
    this = sa.and_(TABLE.c.host == host, TABLE.c.binary == binary)
    now = clock.now()
    noted = connection.execute(sa.update(TABLE).where(this, TABLE.c.up == sa.true()).values(last_seen=now, load=load))
    if noted.rowcount:
        return None
    noted = connection.execute(sa.update(TABLE).where(this).values(last_seen=now, up=True, load=load, generation=_NEXT))
    if noted.rowcount == 0:
        raise exception.HostBinaryNotFound(binary=binary, host=host)
    return rows.to_object(Service, connection.execute(sa.select(TABLE).where(this)).one())


def beat_all(connection: sa.Connection, hosts: Collection[str], binary: str) -> tuple[list[Service], list[str]]:
    """Record heartbeats of several hosts; return the services that were down, and the hosts without a service. One
    statement in the normal case."""
    if not hosts:
        return [], []
    these, now = sa.and_(TABLE.c.binary == binary, TABLE.c.host.in_(hosts)), clock.now()
    noted = connection.execute(sa.update(TABLE).where(these, TABLE.c.up == sa.true()).values(last_seen=now))
    if noted.rowcount == len(set(hosts)):
        return [], []
    locked = connection.execute(sa.select(TABLE).where(these).with_for_update()).all()
    ids = [row.id for row in locked if not row.up]
    returned: Sequence[sa.Row[Any]] = []
    if ids:
        connection.execute(sa.update(TABLE).where(TABLE.c.id.in_(ids)).values(last_seen=now, up=True, generation=_NEXT))
        returned = connection.execute(sa.select(TABLE).where(TABLE.c.id.in_(ids))).all()
    unknown = set(hosts) - {row.host for row in locked}
    return [rows.to_object(Service, row) for row in returned], sorted(unknown)


def last_heard(connection: sa.Connection) -> datetime.datetime | None:
    """Return the time of the newest heartbeat received as a message. A conductor writes its own to the database."""
    moment: datetime.datetime | None = connection.scalar(
        sa.select(sa.func.max(TABLE.c.last_seen)).where(TABLE.c.binary != "nova-conductor"))
    return moment


def mark_down(connection: sa.Connection) -> list[str]:
    """Mark services without heartbeats as down; return the hosts of those that were up before."""
    if clock.in_grace_period():
        return []
    silent = sa.or_(TABLE.c.last_seen < clock.after(-CONF.service_down_time),
                    TABLE.c.last_seen > clock.after(CONF.service_down_time))
    silent_hosts = connection.execute(sa.select(TABLE.c.id, TABLE.c.host).where(silent, TABLE.c.up == sa.true())
                                      .with_for_update()).all()
    if silent_hosts:
        connection.execute(sa.update(TABLE).where(TABLE.c.id.in_([row.id for row in silent_hosts])).values(
            up=False, generation=_NEXT))
    return sorted({row.host for row in silent_hosts})


# --- deployment ------------------------------------------------------------------------------
def _deployment(connection: sa.Connection) -> str:
    """Return the id of the deployment, which stays the same in all copies of the database."""
    return str(connection.execute(sa.select(tables.deployment.c.uuid)).scalar_one())


def _admit(connection: sa.Connection, host: str, identity: str | None, returning: bool) -> None:
    """Check that a host without a row may register. Raises HostIdentityMismatch. ``returning``: the host was registered
    before. Then the row of its deletion must exist; otherwise the database is another one, such as an old backup."""
    if identity is None:
        return
    deleted = connection.execute(sa.delete(DELETED_HOSTS).where(DELETED_HOSTS.c.identity == identity)).rowcount
    if returning and not deleted:
        raise exception.HostIdentityMismatch(host=host, reason=(
            "it has registered with this deployment before, but the database has no record of it. Was the database "
            f"restored from an earlier backup? To register the host as a new one, {_WAY_OUT}."))


# --- operators -------------------------------------------------------------------------------
_EVICTING = ("The removal has been requested from nova-compute: repeat this request in a few seconds. If it is refused "
             "again, the log of nova-compute on that host names the guests that it cannot remove.")
_SILENT = "nova-compute on that host sends no heartbeat. Start it: it removes these guests when it starts."


def update(connection: sa.Connection, service_id: str, disabled: bool | None, reason: str | None,
           forced_down: bool | None) -> tuple[Service, bool]:
    """Change the fields that operators may change (None: unchanged). Return the service, and True if its row has the
    state up. Raises ServiceNotFound, HostEvacuated."""
    row = _row(connection, service_id, lock=True)
    if row.forced_down and forced_down is False:
        unconfirmed = server_migrations.unconfirmed_evacuations(connection, row.host)
        if unconfirmed:
            running = liveness.is_alive(row, clock.now())
            raise exception.HostEvacuated(
                host=row.host, count=len(unconfirmed), running=running, advice=_EVICTING if running else _SILENT)
    values: dict[str, Any] = {"updated_at": clock.now(), "generation": _NEXT}
    if disabled is not None:
        values.update(disabled=disabled, disabled_reason=reason if disabled else None)
    elif reason is not None:
        values["disabled_reason"] = reason
    if forced_down is not None:
        values["forced_down"] = forced_down
    connection.execute(sa.update(TABLE).where(TABLE.c.id == row.id).values(values))
    return get(connection, str(row.id)), row.up


def lock(connection: sa.Connection, service_id: str) -> Service:
    """Return the service, locked until the transaction ends. Raises ServiceNotFound."""
    return rows.to_object(Service, _row(connection, service_id, lock=True))


def delete(connection: sa.Connection, service: Service) -> None:
    connection.execute(sa.delete(TABLE).where(TABLE.c.id == service.id))
    if service.binary == COMPUTE:
        network_hosts.forget_host(connection, service.host)
        if service.identity is not None:  # the machine may register again under any name
            connection.execute(sa.delete(DELETED_HOSTS).where(DELETED_HOSTS.c.identity == service.identity))
            connection.execute(sa.insert(DELETED_HOSTS).values(identity=service.identity, deleted_at=clock.now()))


def check_zone(connection: sa.Connection, zone: str) -> None:
    """Raise InvalidInput for a zone without hosts."""
    if not zone_is_available(connection, zone):
        raise exception.InvalidInput("The requested availability zone is not available")


def zone_is_available(connection: sa.Connection, zone: str) -> bool:
    """Return True if the zone has an enabled compute service. Two statements for any number of services."""
    zones = aggregates.host_zones(aggregates.index(connection))
    hosts = [host for host, its_zone in zones.items() if its_zone == zone]
    somewhere: sa.ColumnElement[bool] = TABLE.c.host.in_(hosts)
    if zone == CONF.default_availability_zone:
        somewhere = sa.or_(somewhere, TABLE.c.host.not_in(list(zones)))
    return connection.scalar(sa.select(TABLE.c.id).where(
        TABLE.c.binary == COMPUTE, TABLE.c.disabled == sa.false(), somewhere).limit(1)) is not None
