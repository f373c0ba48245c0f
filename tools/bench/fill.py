"""Many servers at once: copies of a real one, written straight into the database.

Twenty thousand boots would take most of an hour. So one server is booted through the API, and its rows (instance,
action, claim, memberships) are copied, each with its own ids and on the nodes in turn; what is counted elsewhere (use
of the inventories, servers of a node, quota) is raised to match, and the fake driver's guests are written as if they
had survived a restart. The services are stopped meanwhile. ``nova-manage audit`` reports no findings afterwards.
"""

from __future__ import annotations

import datetime
import json
import uuid as uuidlib
from typing import Any

import sqlalchemy as sa

from nova.db import tables
from nova.objects.servers import states
from nova.virt.fake.guests import GuestStore
from tests.integration.processes import eventually
from tools.bench.load import Unexpected
from tools.bench.world import World

_BATCH = 1000


def fill(world: World, wanted: int) -> None:
    """Raise the number of servers to ``wanted``."""
    engine = sa.create_engine(world.database_url)
    missing = wanted - _count(engine)
    if missing > 0:
        template = _template(world)
        world.stop_all()
        with engine.begin() as connection:
            copies = _copy(connection, template, missing - 1)
        _guests(world, template, copies)
        _analyze(engine, world.setup.database)
        world.start_all()
    engine.dispose()


def _count(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(sa.select(sa.func.count()).select_from(tables.instances).where(
            tables.instances.c.deleted == sa.false())) or 0)


def _template(world: World) -> str:
    """Boot a template server without addresses, which could not be copied."""
    with world.connect() as connection:
        answer = connection.expect(202, "POST", "/servers", world.server_body("template", "none"))
        server_id = str(json.loads(answer)["server"]["id"])
        eventually(lambda: connection.get(f"/servers/{server_id}")["server"]["status"] == "ACTIVE", 60.0,
                   "the template is ACTIVE")
        return server_id


def _copy(connection: sa.Connection, uuid: str, count: int) -> list[str]:
    """Write ``count`` copies of the server ``uuid``; returns their ids."""
    instance = dict(connection.execute(
        sa.select(tables.instances).where(tables.instances.c.uuid == uuid)).one()._mapping)
    nodes = connection.execute(sa.select(
        tables.compute_nodes.c.uuid, tables.compute_nodes.c.host, tables.compute_nodes.c.hypervisor_hostname)
        .order_by(tables.compute_nodes.c.id)).all()
    claim = dict(connection.execute(
        sa.select(tables.allocations).where(tables.allocations.c.consumer_uuid == uuid)).one()._mapping)
    actions = [dict(row._mapping) for row in connection.execute(
        sa.select(tables.actions).where(tables.actions.c.instance_uuid == uuid))]
    members = [dict(row._mapping) for row in connection.execute(
        sa.select(tables.security_group_members).where(tables.security_group_members.c.instance_uuid == uuid))]
    ids: list[str] = []
    for start in range(0, count, _BATCH):
        batch = [(str(uuidlib.uuid4()), nodes[number % len(nodes)], number)
                 for number in range(start, min(start + _BATCH, count))]
        ids += [new for new, _node, _number in batch]
        connection.execute(sa.insert(tables.instances), [_instance(instance, *item) for item in batch])
        connection.execute(sa.insert(tables.allocations), [
            {**claim, "consumer_uuid": new, "provider_uuid": node.uuid, "root_uuid": node.uuid}
            for new, node, _number in batch])
        if actions:
            connection.execute(sa.insert(tables.actions), [
                _without_id(action) | {"uuid": str(uuidlib.uuid4()), "instance_uuid": new,
                                       "request_id": f"req-{uuidlib.uuid4()}"}
                for new, _node, _number in batch for action in actions])
        if members:
            connection.execute(sa.insert(tables.security_group_members), [
                {**member, "instance_uuid": new} for new, _node, _number in batch for member in members])
    _account(connection, instance, claim["resources"], nodes, count)
    return ids


def _instance(template: dict[str, Any], uuid: str, node: Any, number: int) -> dict[str, Any]:
    # An hour's worth of servers, in the order of their numbers.
    created = template["created_at"] - datetime.timedelta(hours=1) + datetime.timedelta(milliseconds=100 * number)
    return _without_id(template) | {
        "uuid": uuid, "host": node.host, "node": node.hypervisor_hostname, "display_name": f"filled-{number}",
        "hostname": f"filled-{number}", "reservation_id": f"r-{number:08x}", "created_at": created,
        "updated_at": created, "launched_at": created}


def _without_id(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}


def _account(connection: sa.Connection, instance: dict[str, Any], resources: dict[str, int], nodes: Any,
             count: int) -> None:
    """Update the usage counters to match the copied claims and the quota."""
    for position, node in enumerate(nodes):
        copies = len(range(position, count, len(nodes)))
        table = tables.compute_nodes
        connection.execute(sa.update(table).where(table.c.uuid == node.uuid).values(
            num_instances=table.c.num_instances + copies, generation=table.c.generation + 1))
        inventories = tables.inventories
        for name, amount in resources.items():
            connection.execute(sa.update(inventories).where(
                inventories.c.provider_uuid == node.uuid, inventories.c.resource_class == name)
                .values(used=inventories.c.used + amount * copies))
    usages = tables.quota_usages
    connection.execute(sa.update(usages).where(
        usages.c.project_id == instance["project_id"], usages.c.user_id.in_(("", instance["user_id"]))).values(
        instances=usages.c.instances + count, cores=usages.c.cores + count * instance["flavor"].vcpus,
        ram=usages.c.ram + count * instance["flavor"].memory_mb))


def _guests(world: World, template: str, copies: list[str]) -> None:
    """Add the guests to the file that the fake driver reads at start."""
    files = [file for file in (world.nova.directory / "guests").glob("*.guests") if template in file.read_text()]
    if len(files) != 1:
        raise Unexpected(f"The fake driver's file with the guest {template} was not found")
    store = GuestStore(str(files[0]))
    store.open()
    for uuid in copies:
        store.add(uuid, states.RUNNING)


def _analyze(engine: sa.Engine, kind: str) -> None:
    """Update the statistics of the database, as it does by itself after some time."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in tables.metadata.sorted_tables:
            connection.execute(sa.text(f"ANALYZE TABLE {table.name}" if kind == "mariadb" else f"ANALYZE {table.name}"))
