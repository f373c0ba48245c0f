"""The work for allocation candidates does not grow with the number of other trees, on SQLite by its instructions."""

import sqlalchemy as sa

from nova.db import tables
from nova.db.placement import candidates
from nova.db.sql.engine import Database
from nova.objects.base import new_uuid
from nova.objects.hosts.placement import CandidateRequest, RequestedGroup
from tests.unit.databases import new_database

_STEP = 100  # instructions per call of the handler


def add_trees(connection, number):
    uuids = [new_uuid() for _ in range(number)]
    connection.execute(sa.insert(tables.providers), [
        {"uuid": uuid, "name": uuid, "root_uuid": uuid, "parent_uuid": None, "traits": []} for uuid in uuids])
    connection.execute(sa.insert(tables.inventories), [
        {"provider_uuid": uuid, "resource_class": name, "total": 8, "reserved": 0, "ratio": 1.0, "min_unit": 1,
         "max_unit": 8, "step_size": 1, "used": 0} for uuid in uuids for name in ("VCPU", "MEMORY_MB")])


def instructions(db):
    calls = []

    def count(connection):
        sqlite = connection.connection.driver_connection
        sqlite.set_progress_handler(lambda: calls.append(1), _STEP)
        try:
            return candidates.find(connection, CandidateRequest(limit=5, groups=[
                RequestedGroup(resources={"VCPU": 1, "MEMORY_MB": 1})]))
        finally:
            sqlite.set_progress_handler(None, 0)

    assert len(db.read(count).candidates) == 5
    return len(calls) * _STEP


def test_instructions_do_not_grow_with_the_number_of_trees(tmp_path):
    db = Database(new_database(tmp_path))
    try:
        db.write(lambda connection: add_trees(connection, 200))
        few = instructions(db)
        db.write(lambda connection: add_trees(connection, 1800))
        assert instructions(db) < 1.5 * few
    finally:
        db.close()
