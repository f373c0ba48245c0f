"""Floating addresses: pools, owners, and the interfaces with which they are associated. For hosts and users, the
network_info of a server also contains its floating addresses. A transaction that changes the floating addresses of a
server locks the row of the server and increases the version of the data that hosts receive."""

import ipaddress

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db import tables, versions
from nova.db.accounts import quotas
from nova.db.servers import servers
from nova.db.sql import clock, rows
from nova.objects.base import new_uuid
from nova.objects.networks.network import FloatingIp
from nova.objects.servers import states
from nova.objects.servers.instance import Instance

TABLE = tables.floating_ips

_MOST = 1024  # maximum number of addresses that one request creates or deletes
_NOWHERE = {"instance_uuid": None, "vif_id": None, "fixed_address": None}


# --- pools ---------------------------------------------------------------------------------------
def pools(connection: sa.Connection) -> list[str]:
    return list(connection.scalars(sa.select(TABLE.c.pool).distinct().order_by(TABLE.c.pool)))


def create(connection: sa.Connection, pool: str, cidr: str) -> int:
    """Add the host addresses of a network to a pool; return their number. Raises InvalidInput, FloatingIpExists."""
    if not pool.strip() or len(pool) > 255:
        raise exception.InvalidInput(reason="pool must have 1 to 255 characters")
    wanted = _addresses(cidr)
    quotas.serialize(connection, "floating_ips")
    taken = connection.scalar(sa.select(TABLE.c.address).where(TABLE.c.address.in_(wanted)).limit(1))
    if taken is not None:
        raise exception.FloatingIpExists(address=taken)
    connection.execute(sa.insert(TABLE), [{"uuid": new_uuid(), "address": address, "pool": pool} for address in wanted])
    return len(wanted)


def delete(connection: sa.Connection, cidr: str) -> int:
    """Remove the addresses of a network from their pools; return their number. Raises InvalidInput, FloatingIpInUse."""
    held = connection.execute(sa.select(TABLE.c.id, TABLE.c.address, TABLE.c.project_id).where(
        TABLE.c.address.in_(_addresses(cidr))).order_by(TABLE.c.id).with_for_update()).all()
    for row in held:
        if row.project_id is not None:
            raise exception.FloatingIpInUse(address=row.address)
    return connection.execute(sa.delete(TABLE).where(TABLE.c.id.in_([row.id for row in held]))).rowcount


def _addresses(cidr: str) -> list[str]:
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise exception.InvalidInput(reason=f"ip_range '{cidr}' is not an IPv4 network: {error}") from error
    if network.num_addresses > _MOST:
        raise exception.InvalidInput(reason=f"ip_range '{cidr}' has more than {_MOST} addresses")
    if any(network.overlaps(ipaddress.IPv4Network(special)) for special in (
            "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")):
        raise exception.InvalidInput(
            reason=f"ip_range '{cidr}' has reserved, loopback, link-local or multicast addresses")
    return [str(address) for address in network.hosts()]


# --- of a project --------------------------------------------------------------------------------
def index(connection: sa.Connection, project_id: str | None = None) -> list[FloatingIp]:
    """Return the floating IPs of a project (None: all floating IPs, including free ones), oldest first."""
    return rows.to_objects(FloatingIp, connection.execute(
        sa.select(TABLE).where(*rows.equal(TABLE.c.project_id, project_id)).order_by(TABLE.c.id)))


def on_host(connection: sa.Connection, host: str) -> list[FloatingIp]:
    """Return the floating IPs of servers on a host, oldest first."""
    instances = tables.instances
    return rows.to_objects(FloatingIp, connection.execute(
        sa.select(TABLE).join(instances, instances.c.uuid == TABLE.c.instance_uuid)
        .where(instances.c.host == host, instances.c.deleted == sa.false()).order_by(TABLE.c.id)))


def get(connection: sa.Connection, uuid: str, project_id: str | None = None) -> FloatingIp:
    """Return a floating IP of a project (None: any project). Raises FloatingIpNotFound."""
    return _read(connection, TABLE.c.uuid == uuid, uuid, project_id)


def _read(connection: sa.Connection, this: sa.ColumnElement[bool], name: str, project_id: str | None) -> FloatingIp:
    mine = TABLE.c.project_id.is_not(None) if project_id is None else TABLE.c.project_id == project_id
    return rows.first(connection, FloatingIp, sa.select(TABLE).where(this, mine), exception.FloatingIpNotFound(id=name))


def allocate(connection: sa.Connection, project_id: str, pool: str | None = None) -> FloatingIp:
    """Allocate a free address of a pool (None: the first pool) to the project. Raises FloatingIpPoolNotFound,
    NoMoreFloatingIps, QuotaLimit."""
    pool_names = pools(connection)
    name = pool or (pool_names[0] if pool_names else "")
    if name not in pool_names:
        raise exception.FloatingIpPoolNotFound()
    quotas.check_rows(connection, "floating_ips", project_id, "Maximum number of floating IPs exceeded")
    row = connection.execute(
        sa.select(TABLE).where(TABLE.c.pool == name, TABLE.c.project_id.is_(None)).order_by(TABLE.c.id).limit(1)
        .with_for_update(skip_locked=True)).first()
    if row is None:
        raise exception.NoMoreFloatingIps(pool=name)
    connection.execute(sa.update(TABLE).where(TABLE.c.id == row.id).values(
        project_id=project_id, updated_at=clock.now()))
    return msgspec.structs.replace(rows.to_object(FloatingIp, row), project_id=project_id)


def release(connection: sa.Connection, uuid: str, project_id: str | None = None) -> str | None:
    """Release an address to its pool. Return the server with which it was associated, whose host must be notified, or
    None. Raises FloatingIpNotFound, Conflict (it is being associated with a server)."""
    floating_ip = get(connection, uuid, project_id)
    if floating_ip.instance_uuid is not None:
        _take_from(connection, servers.lock(connection, floating_ip.instance_uuid), floating_ip.address)
    done = connection.execute(
        sa.update(TABLE).where(TABLE.c.uuid == uuid, TABLE.c.project_id == floating_ip.project_id,
                               TABLE.c.instance_uuid.is_(None))
        .values(project_id=None, updated_at=clock.now())).rowcount
    if not done:
        raise exception.Conflict(f"Floating IP {floating_ip.address} is being associated with a server.")
    return floating_ip.instance_uuid


# --- of a server, whose row is locked ------------------------------------------------------------
def server_of(connection: sa.Connection, address: str, project_id: str) -> str | None:
    """Return the server with which a project's floating address is associated. Raises FloatingIpNotFound."""
    return _read(connection, TABLE.c.address == address, address, project_id).instance_uuid


def give(connection: sa.Connection, instance: Instance, address: str, fixed_address: str | None = None) -> None:
    """Associate a floating IP of the server's project with a fixed address of the server (None: of the first interface
    without a floating IP). Raises FloatingIpNotFound, FloatingIpInUse, InvalidInput, InstanceInvalidState."""
    _read(connection, TABLE.c.address == address, address, instance.project_id)
    if instance.task_state == states.DELETING:  # The server may have released all its addresses already.
        raise exception.InvalidInput(f"Instance {instance.uuid} is being deleted")
    usable = [vif for vif in instance.network_info if not vif.outside and vif.addresses(4)]
    if not usable:
        raise exception.InvalidInput("No fixed IPs associated to instance")
    if fixed_address is not None:
        usable = [vif for vif in usable if fixed_address in vif.addresses(4)]
        if not usable:
            raise exception.InvalidInput("Specified fixed address not assigned to instance")
    vif = next((vif for vif in usable if vif.floating is None), None)
    if vif is None:
        raise exception.InvalidInput("The fixed addresses of the instance have floating IPs already")
    done = connection.execute(
        sa.update(TABLE).where(TABLE.c.address == address, TABLE.c.project_id == instance.project_id,
                               TABLE.c.instance_uuid.is_(None))
        .values(instance_uuid=instance.uuid, vif_id=vif.id, fixed_address=vif.addresses(4)[0],
                updated_at=clock.now())).rowcount
    if not done:  # Another transaction has associated or released the address meanwhile.
        raise exception.FloatingIpInUse(address=address)
    _write(connection, instance, vif.id, address)


def take(connection: sa.Connection, instance: Instance, address: str) -> None:
    """Disassociate an address from the server; it stays allocated to the project. Raises FloatingIpNotFound,
    FloatingIpNotAssociated."""
    floating_ip = _read(connection, TABLE.c.address == address, address, instance.project_id)
    if floating_ip.instance_uuid != instance.uuid:
        raise exception.FloatingIpNotAssociated(address=address, instance_uuid=instance.uuid)
    _take_from(connection, instance, address)


_LET_GO = (sa.update(TABLE).where(TABLE.c.instance_uuid == sa.bindparam("this"))
           .values({**_NOWHERE, "updated_at": sa.bindparam("now")}))
_LET_GO_OF_VIF = _LET_GO.where(TABLE.c.vif_id == sa.bindparam("vif"))


def let_go(connection: sa.Connection, instance_uuid: str, vif_id: str | None = None) -> None:
    """Disassociate the floating IPs of an interface of a server (None: of all its interfaces). One statement."""
    values = {"this": instance_uuid, "now": clock.now()}
    if vif_id is None:
        connection.execute(_LET_GO, values)
    else:
        connection.execute(_LET_GO_OF_VIF, {**values, "vif": vif_id})


def _take_from(connection: sa.Connection, instance: Instance, address: str) -> None:
    connection.execute(sa.update(TABLE).where(TABLE.c.address == address, TABLE.c.instance_uuid == instance.uuid)
                       .values(**_NOWHERE, updated_at=clock.now()))
    for vif in instance.network_info:
        if vif.floating == address:
            _write(connection, instance, vif.id, None)


def _write(connection: sa.Connection, instance: Instance, vif_id: str, address: str | None) -> None:
    servers.update(connection, instance.uuid, {"network_info": [
        msgspec.structs.replace(vif, floating=address) if vif.id == vif_id else vif for vif in instance.network_info]})
    versions.bump(connection, versions.rules(instance.project_id))
