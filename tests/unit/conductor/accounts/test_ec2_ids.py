"""Numbers in the ids of the EC2 API."""

from __future__ import annotations

import datetime
import threading
import zlib

import pytest
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.endpoints.accounts import Ec2Ids
from nova.db import tables
from nova.db.maintenance import purge
from nova.objects.base import new_uuid, utcnow
from tests.unit.conductor.books import Books, server

CTX = context.admin()


@pytest.fixture
def ids(core: Books) -> Ec2Ids:
    return Ec2Ids(core)


def number(ids: Ec2Ids, uuid: str, kind: str = "vol") -> int:
    item, = ids.assign(CTX, kind, [uuid])
    assert item.uuid == uuid
    return item.number


def test_number_is_the_checksum_of_the_uuid_in_both_directions(ids: Ec2Ids) -> None:
    uuid = new_uuid()
    assert number(ids, uuid) == zlib.crc32(uuid.encode()) == number(ids, uuid)
    assert [item.uuid for item in ids.resolve(CTX, "vol", [zlib.crc32(uuid.encode()), 5])] == [uuid]
    assert ids.resolve(CTX, "snap", [zlib.crc32(uuid.encode())]) == []


def test_objects_with_equal_checksums_get_different_numbers(ids: Ec2Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zlib, "crc32", lambda _data: 2**32 - 1)
    uuids = [new_uuid() for _ in range(3)]
    first = {item.uuid: item.number for item in ids.assign(CTX, "ami", uuids)}
    assert sorted(first.values()) == [0, 1, 2**32 - 1]
    other = number(ids, new_uuid(), "ami")
    assert other == 2
    assert {item.uuid: item.number for item in ids.assign(CTX, "ami", uuids)} == first
    assert number(ids, uuids[0], "sg") == 2**32 - 1


def test_servers_have_their_own_numbers_and_no_rows(core: Books, ids: Ec2Ids) -> None:
    instance = server(core)
    item, = ids.assign(CTX, "i", [instance.uuid, new_uuid()])
    assert (item.number, item.reservation_id) == (instance.id, instance.reservation_id)
    assert [found.uuid for found in ids.resolve(CTX, "i", [instance.id])] == [instance.uuid]
    assert rows(core) == 0


def rows(core: Books) -> int:
    return core.db.read(lambda connection: connection.scalar(
        sa.select(sa.func.count()).select_from(tables.ec2_ids))) or 0


@pytest.mark.parametrize("numbers", [[-1], [2**32], [2**70]])
def test_numbers_that_no_id_has_are_not_resolved(ids: Ec2Ids, numbers: list[int]) -> None:
    for kind in ("i", "vol"):
        assert ids.resolve(CTX, kind, numbers) == []


def test_too_many_ids_and_unknown_kinds_are_refused(ids: Ec2Ids) -> None:
    for call in (lambda: ids.assign(CTX, "vol", ["x"] * 1001), lambda: ids.resolve(CTX, "vol", [1] * 1001),
                 lambda: ids.assign(CTX, "vpc", ["x"]), lambda: ids.resolve(CTX, "vpc", [1])):
        with pytest.raises(exception.InvalidInput):
            call()


def test_purge_removes_ids_that_were_not_shown_since(core: Books, ids: Ec2Ids) -> None:
    unused, used = new_uuid(), new_uuid()
    before = {uuid: number(ids, uuid) for uuid in (unused, used)}
    core.db.write(lambda connection: connection.execute(sa.update(tables.ec2_ids).values(
        used_at=utcnow() - datetime.timedelta(days=10))))
    number(ids, used)  # shows it again
    what = purge.What(servers_before=utcnow() - datetime.timedelta(days=5))
    assert purge.count(core.db, what)["unused EC2 ids"] == 1
    removed = purge.Removed()
    for page in purge.purge(core.db, what):
        removed += page
    assert (removed["ec2_ids"], rows(core)) == (1, 1)
    assert {uuid: number(ids, uuid) for uuid in (unused, used)} == before


def test_existing_ids_are_shown_while_the_database_takes_no_changes(
        core: Books, ids: Ec2Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = new_uuid()
    before = number(ids, uuid)
    core.db.write(lambda connection: connection.execute(sa.update(tables.ec2_ids).values(
        used_at=utcnow() - datetime.timedelta(days=10))))

    def refuse(*_args: object) -> None:
        raise exception.ServiceUnavailable("The database is read only at present.")

    monkeypatch.setattr(core.db, "write", refuse)
    assert number(ids, uuid) == before
    with pytest.raises(exception.ServiceUnavailable):
        ids.assign(CTX, "vol", [uuid, new_uuid()])


def test_concurrent_requests_assign_the_same_numbers(ids: Ec2Ids) -> None:
    uuids = [new_uuid() for _ in range(50)]
    results: list[dict[str, int]] = []

    def work() -> None:
        results.append({item.uuid: item.number for item in ids.assign(CTX, "vol", uuids)})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results)
