"""The schema migrations create exactly the tables of the models."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import threading

import pytest
import sqlalchemy as sa

from nova import conf, exception
from nova.db import tables
from nova.db.hosts import compute_nodes
from nova.db.maintenance import migrate
from nova.db.migrations import versions
from nova.db.servers import servers
from nova.db.sql.engine import Database
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid, utcnow
from nova.objects.networks.network import FixedIp
from nova.objects.servers.instance import Instance


def _differences(url: str) -> list[object]:
    database = Database(url)
    try:
        return database.read(migrate.differences)
    finally:
        database.close()


def test_db_sync_of_an_empty_database_creates_the_schema_of_the_models(database_url: str) -> None:
    assert migrate.version(database_url) is None
    migrate.sync(database_url)
    assert migrate.version(database_url) == migrate.newest()
    assert _differences(database_url) == []


def test_second_db_sync_changes_nothing(database_url: str) -> None:
    migrate.sync(database_url)
    migrate.sync(database_url)
    assert _differences(database_url) == []


def test_schema_difference_is_reported(database_url: str) -> None:
    migrate.sync(database_url)
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.text("DROP INDEX ix_providers_root_uuid" if database.dialect != "mysql" else
                                   "DROP INDEX ix_providers_root_uuid ON providers"))
        connection.execute(sa.text("ALTER TABLE keypairs DROP COLUMN fingerprint"))
    database.close()
    kinds = {difference[0] for difference in _differences(database_url)}  # type: ignore[index]
    assert kinds == {"add_index", "add_column"}


def test_unknown_schema_revision_is_invalid_input(database_url: str) -> None:
    with pytest.raises(exception.InvalidInput, match="9999"):
        migrate.sync(database_url, "9999")
    migrate.sync(database_url)
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '7777'"))
    database.close()
    with pytest.raises(exception.InvalidInput, match="7777"):
        migrate.sync(database_url)


def test_interrupted_schema_upgrade_is_continued(database_url: str) -> None:
    """Databases without transactional DDL keep the tables of a migration that was killed."""
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        tables.services.create(connection)
        tables.instances.create(connection)
    database.close()
    migrate.sync(database_url)
    assert _differences(database_url) == []


def test_concurrent_schema_upgrades_run_once(database_url: str) -> None:
    errors: list[Exception] = []

    def sync() -> None:
        try:
            migrate.sync(database_url)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=sync) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert _differences(database_url) == []


def test_migration_converts_interfaces_to_lists_of_addresses(database_url: str) -> None:
    migrate.sync(database_url)
    old = {"id": "v", "network_id": "n", "label": "l", "mac": "fa:16:3e:00:00:01", "address": "10.0.0.5", "prefix": 24,
           "gateway": "10.0.0.1", "dns": ["9.9.9.9"], "cidr": "10.0.0.0/24", "bridge": "br", "devname": "tap"}
    database = Database(database_url)
    made = [Instance(uuid=str(number), project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
                     flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1)) for number in range(3)]
    table = sa.table("instances", sa.column("uuid"), sa.column("network_info", sa.Text))
    with database.engine.connect() as connection, connection.begin():
        servers.insert(connection, made)
        for number, info in enumerate([[old], [old, old], []]):
            connection.execute(sa.update(table).where(table.c.uuid == str(number))
                               .values(network_info=json.dumps(info)))
        migration = importlib.import_module("nova.db.migrations.versions.v0004_networks")
        for _time in range(2):
            migration.convert_interfaces(connection)
    found = database.read(lambda connection: servers.get_many(connection, ["0", "1", "2"]))
    database.close()
    assert [len(instance.network_info) for instance in sorted(found, key=lambda each: each.uuid)] == [1, 2, 0]
    [vif] = next(instance for instance in found if instance.uuid == "0").network_info
    assert vif.fixed_ips == [FixedIp(address="10.0.0.5", prefix=24, gateway="10.0.0.1", dns=["9.9.9.9"],
                                     cidr="10.0.0.0/24", mode="dhcp")]
    assert vif.bridge == "br"


def test_migration_fills_mac_addresses_of_fixed_ips(database_url: str) -> None:
    """The row in use keeps the MAC address of two rows with the same address."""
    migrate.sync(database_url)
    database = Database(database_url)
    name, = (found.name for found in pkgutil.iter_modules(versions.__path__) if found.name.endswith("mac_addresses"))
    fill = importlib.import_module(f"{versions.__name__}.{name}").fill
    networks = {}
    while True:
        uuid = new_uuid()
        start = int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:3], "big")
        if start + 1 in networks:
            break
        networks[start] = uuid
    table = tables.fixed_ips
    # Row 1 of the first network and row 2 of the second would have the same MAC address.
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.insert(table), [
            {"id": 1, "network_uuid": networks[start + 1], "address": "10.0.0.1", "version": 4, "instance_uuid": None},
            {"id": 2, "network_uuid": uuid, "address": "10.0.0.1", "version": 4, "instance_uuid": "in use"},
            {"id": 3, "network_uuid": uuid, "address": "fd00::1", "version": 6, "instance_uuid": None}])
        for _time in range(2):
            fill(connection)
            macs = dict(connection.execute(sa.select(table.c.id, table.c.mac)).all())
            number = (start + 2) % 2**24
            assert macs[2] == f"fa:16:3e:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
            assert macs[1].startswith("fa:16:3e:")
            assert macs[1] != macs[2]
            assert macs[3] is None
    database.close()


def test_migration_of_nodes_leaves_metrics_empty(database_url: str) -> None:
    """Conductors of the previous release also write them, without the column."""
    conf.register()
    migrate.sync(database_url, "0023")
    table = tables.compute_nodes
    old = sa.table("compute_nodes", *(sa.column(column.name, column.type) for column in table.c
                                      if column.name not in ("id", "metrics")))
    made = {"host": "h", "hypervisor_type": "fake", "hypervisor_version": 1, "host_ip": "192.0.2.1", "cpu_info": {},
            "supported_instances": [], "service_id": 1, "num_instances": 0, "num_io_ops": 0, "failed_builds": 0,
            "fitted": False, "generation": 1, "created_at": utcnow(), "updated_at": utcnow()}
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        assert "metrics" not in {column["name"] for column in sa.inspect(connection).get_columns("compute_nodes")}
        connection.execute(sa.insert(old).values(uuid="before", hypervisor_hostname="before", **made))
    migrate.sync(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.insert(old).values(uuid="during", hypervisor_hostname="during", **made))
    found = database.read(lambda connection: compute_nodes.states(connection, None, 10))
    database.close()
    assert {state.node: state.metrics for state in found} == {"before": {}, "during": {}}
