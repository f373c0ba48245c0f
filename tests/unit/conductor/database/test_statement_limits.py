"""Time limits of statements, and the cost of list requests with many sort keys."""

from __future__ import annotations

import itertools
import pathlib

import pytest
import sqlalchemy as sa

from nova import exception
from nova.db.servers import server_search
from nova.db.sql.engine import Database
from nova.objects.servers.server_request import ServerQuery
from tests.unit.conductor.books import Books, server

ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT COUNT(*) FROM c"
SORT_KEYS = ["display_name", "hostname", "access_ip_v4", "launched_at", "progress", "vm_state", "locked_by"]


def cancelled_once(database: Database, statement: str) -> None:
    """Assert that the statement is cancelled and not retried, and that the connection stays usable."""
    begun: list[str] = []

    def run(connection: sa.Connection) -> None:
        begun.append(statement)
        connection.execute(sa.text(statement)).all()

    for transact in (database.read, database.write):
        with pytest.raises(exception.ServiceUnavailable, match="cancelled a statement of the request"):
            transact(run)
    assert len(begun) == 2
    assert database.read(lambda connection: connection.scalar(sa.text("SELECT 1"))) == 1


def test_statement_over_the_time_limit_is_cancelled_and_not_retried(tmp_path: pathlib.Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/nova.sqlite", statement_seconds=1)
    cancelled_once(database, ENDLESS)
    database.close()


def _page(core: Books, keys: list[str], marker: str | None) -> tuple[list[str], str]:
    """Return the uuids of a page, and the statement that selected them."""
    core.statements()
    query = ServerQuery(sort=[(key, "asc") for key in keys], limit=2, marker=marker)
    found = core.db.read(lambda connection: [each.uuid for each in server_search.search(connection, query).servers])
    return found, next(statement for statement in reversed(core.statements()) if "LIMIT" in statement)


def test_repeated_sort_key_does_not_lengthen_the_statement(core: Books) -> None:
    marker = server(core).uuid
    _found, once = _page(core, ["created_at"], marker)
    _found, often = _page(core, ["created_at"] * 1000, marker)
    assert often == once
    _found, unique = _page(core, ["uuid", *SORT_KEYS], marker)
    assert "display_name" not in unique.partition("ORDER BY")[2]


def test_statement_length_grows_linearly_with_the_sort_keys(core: Books) -> None:
    marker = server(core).uuid
    # Pages sorted by a single key are read from its index.
    lengths = [len(_page(core, SORT_KEYS[:number], marker)[1]) for number in range(2, len(SORT_KEYS) + 1)]
    grown = [after - before for before, after in itertools.pairwise(lengths)]
    assert max(grown) < 400
    assert grown[-1] < grown[0] * 2


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_pages_by_many_sort_keys_contain_every_server_once(core: Books, direction: str) -> None:
    wanted = {server(core, access_ip_v4=name, progress=progress, locked_by=by).uuid
              for name in (None, "a", "b") for progress in (0, 1) for by in (None, "owner")}
    seen: list[str] = []
    while True:
        query = ServerQuery(sort=[(key, direction) for key in SORT_KEYS], limit=2, marker=seen[-1] if seen else None)
        page = core.db.read(lambda connection, query=query: [  # type: ignore[misc]
            each.uuid for each in server_search.search(connection, query).servers])
        if not page:
            break
        seen += page
    assert len(seen) == len(wanted)
    assert set(seen) == wanted
