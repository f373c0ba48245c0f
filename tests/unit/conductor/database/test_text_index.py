"""The text index of servers: searches find rare servers by it, with the same results as without it."""

from __future__ import annotations

import datetime
import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import zstandard

from nova import conf, exception
from nova.conductor.background.text_index import Maintenance
from nova.db import tables, versions
from nova.db.maintenance import migrate
from nova.db.servers import server_search, servers, text_index
from nova.db.sql import clock, searches
from nova.db.sql.engine import Database
from nova.objects.servers.server_request import ServerQuery
from tools.bench import million_rows

LIVE, DELETED, SIZE = 110, 150, 20
TABLE = tables.instances
NAMES = ["Straße", "ÅNGSTRÖM", "Kelvin", "100%_!", "vm (test)", "c++", "web[1", "a\nb", "a\rb", "db-1"]
FILTERS: list[dict[str, Any]] = [
    {"name": name} for name in (
        "ångström", "STRASSE|straße", "kelvin$", "^100%_!$", "vm (test)", "c++", "web[1", "a.b", "^b$", r"a\nb", r"\Aa",
        "a[^x]b", "(nothing|nobody)", "server-000000", "x*", "(?s)a.b", r"\Qc++\E", "db-1", r"-\d$")]
FILTERS += [{"ip": value} for value in ("10.9.0.7", "^10.9.0.7$", "10.(7|9).0.", "0.9", "10.9.1|^10.9.0.7", "fd00")]
FILTERS += [{"ip6": value} for value in ("fd00", "^fd00::7$")]
FILTERS += [{name: value} for name in ("tags", "tags-any", "not-tags", "not-tags-any") for value in (
    ["rare"], ["web"], ["none"], ["rare", "web"], ['a"b'], ["RARE"])]
FILTERS += [{"reservation_id": "r-77"}, {"description": "server-.*77$"}, {"key_name": "key-00.*99"},
            {"name": "server", "ip": "10.9.0.7"}, {"tags": ["rare"], "name": "7$"}, {"hostname": "server-0000077"}]
SORTS: list[list[tuple[str, str]]] = [[], [("created_at", "asc")], [("display_name", "asc"), ("created_at", "asc")]]


@pytest.fixture(scope="module")
def index_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('texts')}/nova.sqlite"


@pytest.fixture(scope="module")
def filled(index_url: str) -> Iterator[Database]:
    conf.register()
    migrate.sync(index_url)
    database = Database(index_url)
    million_rows.fill(database.engine, LIVE, DELETED)
    with database.engine.begin() as connection:
        # In the middle of the lists, so that their first windows contain none.
        middle = sa.or_(TABLE.c.id.between(33, 117), TABLE.c.id.between(183, 227))
        connection.execute(sa.update(TABLE).values(
            display_name=sa.case(*((sa.and_(middle, TABLE.c.id % 23 == index), name)
                                   for index, name in enumerate(NAMES)), else_=TABLE.c.display_name),
            addresses=sa.case((sa.and_(middle, TABLE.c.id % 31 == 0), ",10.9.0.7,fd00::7,"), else_=TABLE.c.addresses),
            tags=sa.case((sa.and_(middle, TABLE.c.id % 29 == 0), sa.literal(["rare", 'a"b'], TABLE.c.tags.type)),
                         else_=TABLE.c.tags),
            # Several servers of a request have one creation time; a few were deleted for a while (soft-deleted).
            created_at=sa.case((TABLE.c.id % 40 < 5, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
                               else_=TABLE.c.created_at),
            soft_deleted_at=sa.case((sa.and_(TABLE.c.id % 17 == 0, TABLE.c.deleted == sa.false()),
                                     TABLE.c.created_at))))
    database.read(clock.synchronize)
    yield database
    database.close()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the index after the first window without a result."""
    monkeypatch.setattr(text_index, "SIZE", SIZE)
    monkeypatch.setattr(text_index, "_AT_ONCE", 3)
    monkeypatch.setattr(text_index, "FRESH", 1000.0)
    monkeypatch.setattr(text_index, "_BATCH", 7)
    monkeypatch.setattr(searches, "FEW", 30)
    monkeypatch.setattr(searches, "_SECONDS", 0.0)
    monkeypatch.setattr(searches, "_SECONDS_EMPTY", 0.0)


@pytest.fixture
def indexed(filled: Database) -> Database:
    """Return the database with an index that is complete, and some servers that are not in it yet."""
    maintain(filled)
    return filled


def maintain(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(sa.delete(tables.versions).where(tables.versions.c.name == "text-index"))
    Maintenance(database).run()


def blocks_of(database: Database, **where: Any) -> list[int | None]:
    return database.read(lambda connection: list(connection.scalars(sa.select(TABLE.c.text_block).filter_by(**where))))


def listed(database: Database, query: ServerQuery) -> list[str]:
    """Return the ids of the servers on all pages."""
    uuids, marker = list[str](), None
    while True:
        query.marker = marker

        def read(connection: sa.Connection) -> tuple[list[str], str | None]:
            page = server_search.search(connection, query)
            return [server.uuid for server in page.servers], page.marker

        page, marker = database.read(read)
        uuids += page
        if marker is None:
            return uuids


def test_searches_by_the_index_have_the_same_results(indexed: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    used, covered, wrong = 0, 0, list[str]()
    candidates = text_index.candidates

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal used
        batches = candidates(*args, **named)
        used += batches is not None
        return batches

    monkeypatch.setattr(text_index, "candidates", counted)
    monkeypatch.setattr(text_index, "complete", lambda _connection: True)  # a busy machine needs longer than FRESH
    searched = FILTERS if indexed.dialect == "sqlite" else FILTERS[::4]  # all would take minutes
    for number, (filters, deleted) in enumerate(itertools.product(searched, (False, True, None))):
        def query() -> ServerQuery:
            return ServerQuery(filters=dict(filters), sort=SORTS[number // 2 % len(SORTS)],  # noqa: B023
                               deleted=deleted, limit=25, brief=True)  # noqa: B023

        monkeypatch.setattr(searches, "FEW", LIVE + DELETED)  # one window, without the index
        expected = listed(indexed, query())
        monkeypatch.setattr(searches, "FEW", 30)
        covered += 1
        if listed(indexed, query()) != expected:
            wrong.append(f"{filters} {query().sort} {deleted}")
    assert not wrong
    print(f"{covered} searches, {used} pages by the index")
    assert used > covered / 3


def test_blocks_have_servers_that_are_all_deleted_or_all_alive(indexed: Database) -> None:
    alive, deleted = blocks_of(indexed, deleted=False), blocks_of(indexed, deleted=True)
    assert max(alive.count(None), deleted.count(None)) < SIZE
    assert not {*alive} - {None} & {*deleted}
    assert all(alive.count(block) == SIZE for block in {*alive} - {None})


@pytest.mark.parametrize("changes", [{"display_name": "renamed"}, {"tags": ["renamed"]}, {"deleted": True},
                                     {"network_info": []}], ids=lambda changes: next(iter(changes)))
def test_a_server_whose_texts_change_leaves_its_block(indexed: Database, changes: dict[str, Any]) -> None:
    uuid = indexed.read(lambda connection: connection.scalar(
        sa.select(TABLE.c.uuid).where(TABLE.c.deleted == sa.false(), TABLE.c.text_block.is_not(None))))
    assert uuid is not None
    indexed.write(lambda connection: servers.update(connection, uuid, {"task_state": None}))
    assert blocks_of(indexed, uuid=uuid) != [None]
    indexed.write(lambda connection: servers.update(connection, uuid, changes))
    assert blocks_of(indexed, uuid=uuid) == [None]
    if "display_name" in changes:
        assert listed(indexed, ServerQuery(filters={"name": "renamed"}, limit=5, brief=True)) == [uuid]


def test_changes_by_earlier_conductors_are_indexed_again(indexed: Database) -> None:
    """Conductors of the previous release change texts without removing the server from its block."""
    with indexed.engine.begin() as connection:
        uuid, block = connection.execute(sa.select(TABLE.c.uuid, TABLE.c.text_block).where(
            TABLE.c.deleted == sa.false(), TABLE.c.text_block.is_not(None))).first() or ("", 0)
        connection.execute(sa.update(TABLE).where(TABLE.c.uuid == uuid).values(
            display_name="by the previous release", updated_at=clock.now()))
        stale = sa.update(tables.versions).where(tables.versions.c.name == "text-index")
        connection.execute(stale.values(version=tables.versions.c.version - int(text_index.FRESH * 1000)))
    assert blocks_of(indexed, uuid=uuid) == [block]
    query = ServerQuery(filters={"name": "by the previous release"}, limit=5, brief=True)
    assert listed(indexed, query) == [uuid]  # the index is not complete: it is not used
    Maintenance(indexed).run()
    assert blocks_of(indexed, uuid=uuid) == [None]
    assert listed(indexed, query) == [uuid]


def test_nothing_is_indexed_while_an_earlier_conductor_runs(filled: Database) -> None:
    maintain(filled)
    with filled.engine.begin() as connection:
        connection.execute(sa.insert(tables.services).values(
            uuid="c1", host="old", binary="nova-conductor", topic="", disabled=False, forced_down=False, up=True,
            version=1, created_at=clock.now()))
    try:
        maintain(filled)
        assert filled.read(lambda connection: versions.get(connection, "text-index")) == 0
    finally:
        with filled.engine.begin() as connection:
            connection.execute(sa.delete(tables.services).where(tables.services.c.host == "old"))


def test_blocks_of_purged_servers_are_removed(indexed: Database) -> None:
    block = next(block for block in blocks_of(indexed, deleted=True) if block is not None)
    with indexed.engine.begin() as connection:
        keep = list(connection.scalars(sa.select(TABLE.c.id).where(TABLE.c.text_block == block)))[:3]
        connection.execute(sa.delete(TABLE).where(TABLE.c.text_block == block, TABLE.c.id.not_in(keep)))
    position = 1
    while position:
        position = indexed.write(lambda connection: text_index.dissolve(connection, position - (position == 1), 4))  # noqa: B023
    assert block not in blocks_of(indexed, deleted=True)
    with indexed.engine.connect() as connection:
        for table, column in ((tables.text_blocks, "id"), (tables.block_texts, "block_id")):
            assert connection.execute(sa.select(table).where(table.c[column] == block)).first() is None


def test_an_invalid_expression_is_refused_before_the_index_is_read(indexed: Database) -> None:
    with pytest.raises(exception.InvalidInput):
        listed(indexed, ServerQuery(filters={"name": "x" * 2000}, limit=5))


def test_blocks_of_the_previous_release_are_read(indexed: Database) -> None:
    """Conductors of version 2 compress blocks by zlib."""
    query = ServerQuery(filters={"name": "server-0.*77$"}, limit=100, brief=True)
    found = listed(indexed, query)
    with indexed.engine.begin() as connection:
        for row in connection.execute(sa.select(tables.block_texts)).all():
            connection.execute(sa.update(tables.block_texts).where(
                tables.block_texts.c.block_id == row.block_id, tables.block_texts.c.name == row.name).values(
                    content=zlib.compress(zstandard.decompress(row.content), 1)))
    assert found
    assert listed(indexed, query) == found
