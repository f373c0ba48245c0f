"""A million servers written straight into a database, by INSERT ... SELECT of a template and two tables of numbers.

The rows have what the lists filter and sort by: names, states, users, projects, hosts, addresses, tags and times of
two years. Ids are spread over the indexes as random ones are.
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa

from nova.conf import CONF, register
from nova.db import tables
from nova.db.servers import servers, text_index
from nova.db.sql import clock
from nova.db.sql.engine import Database
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, FixedIp
from nova.objects.servers.action import Event
from nova.objects.servers.instance import Instance

# Projects, users of each, hosts.
PROJECTS, USERS, HOSTS = 1000, 5, 1000
_TEMPLATE = "ffffffff-0000-4000-8000-000000000000"
# Numbers 0 to _SIDE^2 - 1 come from a cross join of two tables, and are inserted in parts of _PART.
_SIDE, _PART = 1100, 100_000
# Seconds between two servers: a million of them are two years.
_APART = 62


def fill(engine: sa.Engine, live: int, deleted: int) -> None:
    """Write so many servers, the deleted ones first, an action of each, and a migration of every fifth."""
    numbers = sa.Table("bench_numbers", sa.MetaData(),
                       sa.Column("n", sa.Integer, primary_key=True, autoincrement=False))
    with engine.begin() as connection:
        numbers.create(connection)
        connection.execute(sa.insert(numbers), [{"n": number} for number in range(_SIDE)])
        servers.insert(connection, [_template()])
    total = live + deleted
    for begin in range(0, total, _PART):
        with engine.begin() as connection:
            _copy(connection, numbers, begin, min(begin + _PART, total), deleted)
    with engine.begin() as connection:
        connection.execute(sa.delete(tables.instances).where(tables.instances.c.uuid == _TEMPLATE))
        numbers.drop(connection)
    analyze(engine)


def index_texts(database: Database) -> None:
    """Make the text index, as conductors do in the background."""
    register(CONF)  # the clock's tolerance depends on options
    database.read(clock.synchronize)
    while database.write(text_index.pack):
        pass
    analyze(database.engine)


def analyze(engine: sa.Engine) -> None:
    """Update the statistics of the database, as it does by itself after some time."""
    kind = engine.dialect.name
    verb = {"sqlite": "ANALYZE", "postgresql": "VACUUM (ANALYZE)"}.get(kind, "ANALYZE TABLE")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("instances", "actions", "migrations", "text_blocks", "block_texts"):
            connection.exec_driver_sql(f"{verb} {table}").close()


def uuid_of(number: int) -> str:
    """Return the id of the server with this number."""
    return f"{number * 48271 % 99999989:08d}-0000-4000-8000-{number:012d}"


def created_at(total: int, number: int) -> datetime.datetime:
    """Return the creation time of the server with this number, if the rows were written today."""
    return _newest() - datetime.timedelta(seconds=_APART * (total - number))


def _newest() -> datetime.datetime:
    return utcnow().replace(hour=0, minute=0, second=0, microsecond=0)


def _template() -> Instance:
    vif = VIF(id=_TEMPLATE, network_id=_TEMPLATE, label="private", mac="fa:16:3e:00:00:01", bridge="br-int",
              devname="tap00000000-00", fixed_ips=[FixedIp(address="10.0.0.5", prefix=24, gateway="10.0.0.1",
                                                           dns=["10.0.0.2"], cidr="10.0.0.0/24", mode="dhcp")])
    properties = {"hw_architecture": "x86_64", "hw_disk_bus": "virtio", "hw_vif_model": "virtio", "os_distro": "debian"}
    image = Image(id=_TEMPLATE, name="debian-13", disk_format="qcow2", properties=properties)
    return Instance(
        uuid=_TEMPLATE, project_id="", user_id="", display_name="", hostname="", vm_state="active", power_state=1,
        flavor=Flavor(flavorid="2", name="m1.small", memory_mb=2048, vcpus=1, root_gb=20), image=image,
        image_ref=_TEMPLATE, metadata={"role": "web", "owner": "someone"}, tags=["web", "blue"],
        system_metadata={f"image_{name}": value for name, value in properties.items()}, network_info=[vif],
        security_groups=["default"], availability_zone="zone-1", root_device_name="/dev/vda", created_at=utcnow())


def _copy(connection: sa.Connection, numbers: sa.Table, begin: int, end: int, deleted: int) -> None:
    left, right = numbers.alias("a"), numbers.alias("b")
    number = left.c.n * _SIDE + right.c.n
    source = sa.select(number.label("k")).select_from(left.join(right, sa.true())).where(
        number >= begin, number < end, left.c.n.between(begin // _SIDE, end // _SIDE)).subquery()
    _insert(connection, tables.instances, sa.select(tables.instances).where(
        tables.instances.c.uuid == _TEMPLATE).subquery(), source, _server_values(connection, source.c.k, deleted))
    uuid, moment = _uuid(source.c.k), _moment(connection, source.c.k)
    _insert(connection, tables.actions, None, source, {
        "uuid": _uuid(source.c.k, "a"), "instance_uuid": uuid, "action": "create", "operation": "build",
        "payload": {}, "attempt": 1, "undoing": False, "outcome": "success", "queued": False,
        "request_id": "req-" + uuid, "user_id": _named("user", source.c.k % (PROJECTS * USERS)),
        "project_id": _named("project", source.c.k % PROJECTS), "start_time": moment, "finish_time": moment,
        "updated_at": moment, "events": list[Event]()})
    flavor = _template().flavor
    _insert(connection, tables.migrations, None, source, {
        "uuid": _uuid(source.c.k, "b"), "instance_uuid": uuid, "migration_type": "live-migration",
        "status": sa.case((source.c.k % 1000 == 0, "error"), else_="completed"), "open": False,
        "source_compute": _named("host", source.c.k % HOSTS), "source_node": _named("host", source.c.k % HOSTS),
        "dest_compute": _named("host", (source.c.k + 1) % HOSTS), "dest_host": "192.0.2.1", "wanted": "",
        "dest_node": _named("host", (source.c.k + 1) % HOSTS), "old_flavor": flavor, "new_flavor": flavor,
        "shared": True, "user_id": _named("user", source.c.k % (PROJECTS * USERS)),
        "project_id": _named("project", source.c.k % PROJECTS), "created_at": moment, "updated_at": moment,
    }, source.c.k % 5 == 0)


def _server_values(connection: sa.Connection, k: sa.ColumnElement[Any], deleted: int) -> dict[str, Any]:
    is_deleted, moment = k < deleted, _moment(connection, k)
    name, host = _named("server", k), _named("host", k % HOSTS)
    digits = [sa.cast(digit, sa.String(3)) for digit in (k // 65536 % 256, k // 256 % 256, k % 256)]
    address = sa.literal(",10.") + digits[0] + "." + digits[1] + "." + digits[2] + ","
    ended = sa.case((is_deleted, moment), else_=sa.null())
    return {
        "uuid": _uuid(k), "project_id": _named("project", k % PROJECTS),
        "user_id": _named("user", k % (PROJECTS * USERS)), "display_name": name, "hostname": name,
        "display_description": name, "host": host, "node": host, "created_at": moment, "updated_at": moment,
        "launched_at": moment, "terminated_at": ended, "deleted": is_deleted,
        "vm_state": sa.case((is_deleted, "deleted"), (k % 1000 == 0, "error"), else_="active"),
        "task_state": sa.case((is_deleted, sa.null()), (k % 5000 == 0, "rebooting"), else_=sa.null()),
        "addresses": address, "reservation_id": "r-" + sa.cast(k, sa.String(12)),
        "flavorid": sa.cast(k % 20, sa.String(12)), "image_ref": _uuid(k % 50), "key_name": _named("key", k % 5000),
        "access_ip_v4": sa.case((k % 100 == 0, "192.0.2." + digits[2]), else_=sa.null()),
        "tags": sa.case((k % 1000 == 7, '["web","rare"]'), else_='["web","blue"]'),
        "availability_zone": _named("zone", k % 3)}


def _insert(connection: sa.Connection, table: sa.Table, template: Any, source: sa.Subquery, values: dict[str, Any],
            *where: sa.ColumnElement[bool]) -> None:
    columns, chosen = [], []
    for column in table.c:
        if column.name == "id" or (template is None and column.name not in values):
            continue
        value = values.get(column.name, None if template is None else template.c[column.name])
        if not isinstance(value, sa.ColumnElement):
            value = sa.literal(value, column.type)
        columns.append(column.name)
        chosen.append(sa.type_coerce(value, column.type).label(f"v_{column.name}"))
    statement = sa.select(*chosen).select_from(source)
    if template is not None:
        statement = sa.select(*chosen).select_from(source.join(template, sa.true()))
    connection.execute(sa.insert(table).from_select(columns, statement.where(*where).order_by(source.c.k),
                                                    include_defaults=False))


def _padded(value: sa.ColumnElement[Any], digits: int) -> sa.ColumnElement[str]:
    return sa.func.substr(sa.cast(value + sa.literal(10**digits, sa.BigInteger), sa.String(20)), 2)


def _uuid(k: sa.ColumnElement[Any], mark: str = "8") -> sa.ColumnElement[str]:
    head = _padded(sa.cast(k, sa.BigInteger) * 48271 % 99999989, 8)
    return head + f"-0000-4000-{mark}000-" + _padded(sa.cast(k, sa.BigInteger), 12)


def _named(what: str, k: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    return sa.literal(f"{what}-") + _padded(k, 7)


def _moment(connection: sa.Connection, k: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return an SQL expression for the creation time of server ``k``."""
    first = _newest() - datetime.timedelta(seconds=_APART * _SIDE * 930)
    begin = first.strftime("%Y-%m-%d %H:%M:%S")
    return sa.literal_column({
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%S', '{begin}', (k * {_APART}) || ' seconds') || '.000000'",
        "postgresql": f"TIMESTAMP '{begin}' + k * INTERVAL '{_APART} seconds'",
        "mysql": f"TIMESTAMPADD(SECOND, k * {_APART}, '{begin}')"}[connection.dialect.name])
