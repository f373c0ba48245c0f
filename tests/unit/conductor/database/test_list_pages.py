"""Pages of servers that end early because no index serves the list: complete, without duplicates, never empty."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from nova import conf
from nova.api.compute.servers import servers_list
from nova.db import tables
from nova.db.maintenance import migrate
from nova.db.servers import server_search
from nova.db.sql import rows, searches
from nova.db.sql.engine import Database
from nova.objects.servers.server_request import ServerQuery
from tools.bench import million_rows

LIVE, DELETED = 96, 96
PROJECT, OTHER = "project-0000007", "project-0000008"
FEW, LIMIT = 10, 30
TABLE = tables.instances


@pytest.fixture(scope="module")
def page_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('pages')}/nova.sqlite"


@pytest.fixture(scope="module")
def two_projects(page_url: str) -> Iterator[Database]:
    """Return a database with servers of two projects alternating; many sort keys are equal or null."""
    conf.register()
    migrate.sync(page_url)
    database = Database(page_url)
    million_rows.fill(database.engine, LIVE, DELETED)
    with database.engine.begin() as connection:
        number = TABLE.c.id % 6
        connection.execute(sa.update(TABLE).values(
            project_id=sa.case((TABLE.c.id % 2 == 0, PROJECT), else_=OTHER),
            display_name=sa.case((number == 0, "Straße"), (number == 1, "ÅNGSTRÖM"), (number == 2, "Kelvin"),
                                 (number == 3, "100%_!"), (number == 4, "vm (test)"), else_="c++"),
            key_name=sa.case((number < 2, sa.null()), (number < 4, "key"), else_="Key"),
            launched_at=sa.case((number == 5, sa.null()), else_=TABLE.c.launched_at)))
    yield database
    database.close()


@pytest.fixture(autouse=True)
def cut_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every page at its first window."""
    monkeypatch.setattr(searches, "FEW", FEW)
    monkeypatch.setattr(searches, "_SECONDS", 0.0)
    monkeypatch.setattr(searches, "_SECONDS_EMPTY", 0.0)


def pages(database: Database, query: ServerQuery) -> Iterator[tuple[list[str], str | None]]:
    """Yield the pages and markers that a client gets when it follows the next links."""
    for _number in range(LIVE + DELETED):
        def read(connection: sa.Connection) -> tuple[list[str], str | None]:
            found = server_search.search(connection, query, partial=True)
            return [server.uuid for server in found.servers], found.marker

        uuids, marker = database.read(read)
        yield uuids, marker
        query.marker = marker or (uuids[-1] if len(uuids) == query.limit else None)
        if query.marker is None:
            return
    pytest.fail("The pages do not end.")


def everything(database: Database, **query: Any) -> list[str]:
    return database.read(lambda connection: [server.uuid for server in server_search.search(
        connection, ServerQuery(**query)).servers])


def sorted_by_database(database: Database, sort: list[tuple[str, str]], **query: Any) -> list[str]:
    """Return the ids that the query finds by creation time, sorted by one statement."""
    uuids = everything(database, **query, brief=True)
    statement = rows.page(sa.select(TABLE.c.uuid).where(TABLE.c.uuid.in_(uuids)), TABLE,
                          server_search._sort(ServerQuery(sort=sort)), None, None)
    return database.read(lambda connection: list(connection.scalars(statement)))


@pytest.mark.parametrize("key", servers_list._SORT_KEYS)
def test_page_that_ends_early_has_a_marker_of_the_same_project(two_projects: Database, key: str) -> None:
    """A marker of another project's server would be refused, and would show the id of that server."""
    for way in ("asc", "desc"):
        query: dict[str, Any] = {"project_id": PROJECT, "filters": {"tags": ["web"], "power_state": "1"}, "brief": True,
                                 "sort": [(key, way), ("created_at", way)]}
        wanted = everything(two_projects, **query)
        found: list[str] = []
        for uuids, _marker in pages(two_projects, ServerQuery(**query, limit=LIMIT)):
            found += uuids
        assert found == wanted
        assert len(found) > LIVE // 3, "too few servers match for a meaningful test"


@pytest.mark.parametrize("keys", [
    ("display_name", "key_name", "launched_at"), ("key_name", "display_name"), ("launched_at", "project_id", "uuid"),
    ("vm_state", "launched_at", "display_name", "key_name"), ("project_id", "key_name", "created_at")], ids="-".join)
def test_pages_by_several_sort_keys_continue_after_the_marker(
        two_projects: Database, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers include deleted servers and null keys, in equal and alternating sort directions."""
    monkeypatch.setattr(searches, "FEW", 4 * FEW)
    monkeypatch.setattr(searches, "_SECONDS", 60.0)
    markers: set[str] = set()
    for ways in itertools.product(("asc", "desc"), repeat=2):
        query: dict[str, Any] = {"deleted": None, "brief": True, "sort": list(zip(keys, itertools.cycle(ways)))}
        wanted = sorted_by_database(two_projects, query["sort"], deleted=None)
        found: list[str] = []
        for uuids, _marker in pages(two_projects, ServerQuery(**query, limit=3 * LIMIT)):
            found += uuids
            markers |= set(uuids[-1:])
        assert found == wanted, ways
        assert len(found) == len(set(found)) == LIVE + DELETED
    with two_projects.engine.connect() as connection:
        deleted = sa.select(TABLE.c.uuid).where(TABLE.c.uuid.in_(markers), TABLE.c.deleted == sa.true())
        assert connection.execute(deleted).first(), "no marker was a deleted server"


SORTS = [
    [("display_name", "asc"), ("created_at", "desc")], [("host", "asc"), ("display_name", "asc")],
    [("key_name", "desc"), ("host", "asc")], [("created_at", "asc"), ("display_name", "desc")],
    [("launched_at", "asc"), ("uuid", "desc")], [("power_state", "asc"), ("uuid", "asc")],
    [("vm_state", "desc"), ("config_drive", "asc"), ("key_name", "desc"), ("launched_at", "asc"),
     ("display_name", "desc"), ("locked_by", "asc"), ("progress", "asc"), ("project_id", "desc")],
    [("locked_by", "asc"), ("task_state", "desc"), ("key_name", "asc"), ("launched_at", "desc")]]


@pytest.mark.parametrize("sort", SORTS, ids=str)
@pytest.mark.parametrize("query", [
    {}, {"deleted": None}, {"deleted": True}, {"project_id": PROJECT}, {"filters": {"vm_state": ["active", "error"]}},
    {"filters": {"name": "(Kel|kel)vin"}, "deleted": None}, {"filters": {"key_name": "key"}}], ids=str)
def test_order_by_several_keys_is_that_of_an_ordinary_sort(
        two_projects: Database, sort: list[tuple[str, str]], query: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages have the rows of one statement that sorts all rows, also if groups are large and keys are null."""
    monkeypatch.setattr(searches, "FEW", 4 * FEW)
    monkeypatch.setattr(searches, "_SECONDS", 60.0)
    wanted = sorted_by_database(two_projects, sort, **query)
    assert len(wanted) >= 25
    found = list(itertools.chain.from_iterable(uuids for uuids, _marker in pages(
        two_projects, ServerQuery(**query, sort=sort, limit=3 * LIMIT, brief=True))))
    assert found == wanted


@pytest.mark.parametrize("filters", [
    {"name": "(server-|Kel|kel)vin"}, {"name": "straße"}, {"name": "å"}, {"name": "100%_!"}, {"name": "vm (test)"},
    {"name": "c++"}, {"name": ".*"}, {"name": ""}, {"name": "^$"}, {"name": "(nothing|nobody)"}, {"ip": "10."},
    {"ip": "10.0.1.7$"}, {"key_name": "KEY"}, {"tags": ["rare"]}, {"tags-any": ["rare", "none"]}, {"not-tags": ["web"]},
    {"reservation_id": "r-77"}, {"name": "Kelvin", "tags": ["rare"]}, {"metadata": {"role": "web"}}], ids=str)
@pytest.mark.parametrize("deleted", [False, None])
def test_only_the_last_page_may_be_empty(two_projects: Database, filters: dict[str, Any], deleted: bool | None) -> None:
    """Clients treat an empty page as the end of the list."""
    query: dict[str, Any] = {"filters": filters, "deleted": deleted, "brief": True}
    wanted = everything(two_projects, **query)
    found: list[str] = []
    for uuids, marker in pages(two_projects, ServerQuery(**query, limit=LIMIT)):
        found += uuids
        assert marker is None or uuids[-1] == marker
    assert found == wanted
