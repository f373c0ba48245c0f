"""The rows that a list statement reads do not grow with the table, for every filter and sort key.

Each list runs on a database of 24,000 servers with small windows. SQLite counts the instructions of each statement,
PostgreSQL and MariaDB (tests/integration/db/test_db_lists.py) the rows that it reads.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from nova import conf
from nova.api.compute.servers import servers_list
from nova.db import tables, versions
from nova.db.accounts import usages
from nova.db.maintenance import migrate
from nova.db.servers import actions, server_migrations, server_search, text_index
from nova.db.sql import clock, searches
from nova.db.sql.engine import Database
from nova.objects.servers.migration import MigrationQuery
from nova.objects.servers.server_request import ServerQuery
from tools.bench import million_rows

LIVE, DELETED = 6_000, 18_000
FEW, LIMIT = 100, 10
# Limits for a statement: rows of ten ranges and of the matching servers; SQLite instructions, dozens for each row.
MOST_ROWS, MOST_INSTRUCTIONS = 2000, 75_000
# A list without matches reads all windows of its scope with the same statement: only the first ones are counted.
MOST_STATEMENTS = 12
NAMES = {"name": "server-0", "display_name": "server-0", "ip": "10.0", "ip6": "fd00", "reservation_id": "r-77",
         "host": "host-0000007", "node": "host-0000007", "user_id": "user-0000007", "project_id": "project-0000007",
         "vm_state": ["error"], "task_state": ["rebooting"], "locked": True, "image": million_rows.uuid_of(7),
         "image_ref": million_rows.uuid_of(7), "uuid": million_rows.uuid_of(7), "flavor": "7", "power_state": "1",
         "launch_index": "0", "progress": "0", "config_drive": "false", "tags": ["rare"], "tags-any": ["rare"],
         "not-tags": ["web"], "not-tags-any": ["web"]}
# Values of filters that no server has, where the text "nothing" is no value or a value of another kind is meant, and
# filters for which the number of rows that are read has no limit, each with the reason.
NOTHING = {"locked": True, "tags": ["none"], "tags-any": ["none", "nobody"], "not-tags": ["web"],
           "not-tags-any": ["rare", "web"], "power_state": "99", "launch_index": "99", "progress": "99",
           "launched_at": "no time", "terminated_at": "2001-02-30", "created_at": "^2001-02-03T04:05"}
UNLIMITED = {"config_drive": "has two values, and each may match"}
# Orders without an index.
SEVERAL_KEYS = ((("display_name", "asc"), ("created_at", "desc")), (("host", "desc"), ("display_name", "desc")),
                (("availability_zone", "asc"), ("display_name", "asc")), (("vm_state", "asc"), ("launched_at", "desc")),
                (("locked_by", "asc"), ("task_state", "asc"), ("key_name", "asc"), ("display_name", "desc")))
# Limit of instructions for all statements of such a list; sorting the live servers alone exceeds it.
MOST_OF_A_LIST = 30_000
# Limit of instructions for all statements of a list without matches: the different hosts are compared, and a window.
MOST_OF_AN_EMPTY_LIST = 100_000
# Parameters that do not filter rows, and filters on other tables, which are refused.
NO_FILTERS = {*servers_list._JOINED, "sort_dir", "sort_key", "all_tenants", "deleted", "soft_deleted", "status",
              "marker", "limit", "changes-since", "changes-before", "tenant_id"}
MOMENT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def list_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('lists')}/nova.sqlite"


@pytest.fixture(scope="module")
def filled(list_url: str) -> Iterator[Database]:
    conf.register()
    migrate.sync(list_url)
    database = Database(list_url)
    million_rows.fill(database.engine, LIVE, DELETED)
    million_rows.index_texts(database)
    yield database
    database.close()


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "FEW", FEW)


class _EnoughStatements(Exception):
    pass


class Reads:
    """A counter of the rows or instructions that each statement of a connection reads. ``counted`` are the results of
    statements with their parameters, which are not executed again: many lists begin with the same ones."""

    def __init__(self, connection: sa.Connection, counted: dict[str, int] | None = None) -> None:
        self.connection, self._counted = connection, {} if counted is None else counted
        self.most, self.total = 0, 0
        self.statement = ""
        self._noted: list[tuple[str, Any]] = []
        sa.event.listen(connection, "before_execute", self._stop)
        sa.event.listen(connection, "before_cursor_execute", self._note)

    def _stop(self, *_statement: Any) -> None:
        if len(self._noted) >= MOST_STATEMENTS:
            raise _EnoughStatements

    def _note(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if statement.startswith("SELECT"):
            self._noted.append((statement, parameters))

    def count(self) -> None:
        sa.event.remove(self.connection, "before_execute", self._stop)
        sa.event.remove(self.connection, "before_cursor_execute", self._note)
        for statement, parameters in self._noted:
            key = f"{statement} {parameters}"
            if key not in self._counted:
                self._counted[key] = getattr(self, f"_{self.connection.dialect.name}")(statement, parameters)
            read = self._counted[key]
            self.total += read
            if read > self.most:
                self.most, self.statement = read, statement

    def _sqlite(self, statement: str, parameters: Any) -> int:
        raw: Any = self.connection.connection.dbapi_connection
        steps = [0]
        raw.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 500), 500)
        raw.execute(statement, parameters).fetchall()
        raw.set_progress_handler(None, 0)
        return steps[0]

    def _postgresql(self, statement: str, parameters: Any) -> int:
        found = self.connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar()
        return _scanned((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])

    def _mysql(self, statement: str, parameters: Any) -> int:
        self.connection.exec_driver_sql("FLUSH STATUS")
        self.connection.exec_driver_sql(statement, parameters).all()
        return sum(int(value) for name, value in self.connection.exec_driver_sql(
            "SHOW SESSION STATUS LIKE 'Handler_read%%'") if name != "Handler_read_rnd_deleted")


def _scanned(plan: dict[str, Any]) -> int:
    """Return the rows that the scans of a plan of PostgreSQL have read."""
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return int(own if "Scan" in plan["Node Type"] and "Relation Name" in plan else 0) + sum(
        _scanned(each) for each in plan.get("Plans", ()))


def server_lists() -> dict[str, ServerQuery]:
    """Return every filter and every sort key of GET /servers, alone for all sets of servers, and combined for one."""
    lists: dict[str, dict[str, Any]] = {"": {}, "changes-since": {"changes_since": MOMENT},
                                        "changes-before": {"changes_before": MOMENT}}
    filters = sorted({*servers_list.QUERY.fields} - NO_FILTERS)
    for name in filters:
        lists[name] = {"filters": {name: NAMES.get(name, "7")}}
        lists[f"vm_state and {name}"] = {"filters": {name: NAMES.get(name, "7"), "vm_state": ["active"]}}
    for key in servers_list._SORT_KEYS:
        for way in ("asc", "desc"):
            lists[f"sort by {key} {way}"] = {"sort": [(key, way), ("created_at", way)]}
        lists[f"host, sort by {key}"] = {"sort": [(key, "asc"), ("created_at", "asc")],
                                         "filters": {"host": "host-0000007"}}
        lists[f"active, sort by {key}"] = {"sort": [(key, "asc"), ("created_at", "asc")],
                                           "filters": {"vm_state": ["active"]}}
    for keys in SEVERAL_KEYS:
        lists[f"sort by {keys}"] = {"sort": list(keys)}
    lists["plain expression that matches nothing"] = {"filters": {"name": "nothing"}}
    lists["expression that matches nothing"] = {"filters": {"name": "(nothing|nobody)"}}
    queries = {}
    sets = ((None, False), (None, True), ("project-0000007", False))
    for number, (name, query) in enumerate(lists.items()):
        combined = name.startswith(("vm_state and", "host, ", "active, "))
        for project, deleted in sets[number % 3:number % 3 + 1] if combined else sets:
            if "changes" in name:
                deleted = None
            queries[f"{name or 'plain'}; project={project}; deleted={deleted}"] = ServerQuery(
                **query, project_id=project, deleted=deleted, limit=LIMIT, brief=True)
    return queries


def migration_lists() -> dict[str, MigrationQuery]:
    """Return every filter of GET /os-migrations."""
    values: dict[str, Any] = {
        "project_id": "project-0000007", "user_id": "user-0000007", "instance_uuid": million_rows.uuid_of(70),
        "host": "host-0000005", "source_compute": "host-0000005", "status": "error",
        "migration_type": "live-migration", "changes_since": MOMENT, "changes_before": MOMENT}
    assert {*MigrationQuery.__struct_fields__} == {*values, "limit", "marker"}
    return {"plain": MigrationQuery(limit=LIMIT), **{
        name: MigrationQuery(limit=LIMIT, **{name: value}) for name, value in values.items()}, **{
        f"{name}, one project": MigrationQuery(limit=LIMIT, **{**values, "project_id": "project-0000005", name: value})
        for name, value in values.items() if name == "status"}}


def read_servers(connection: sa.Connection, query: ServerQuery) -> None:
    list(server_search.search(connection, query, partial=True).servers)


def test_list_statements_read_at_most_a_window(filled: Database) -> None:
    """Pages after a marker are counted, too."""
    with filled.engine.connect() as connection, connection.begin():
        check_lists(connection, MOST_INSTRUCTIONS if filled.dialect == "sqlite" else MOST_ROWS)


def check_lists(connection: sa.Connection, bound: int) -> None:
    marker = million_rows.uuid_of(DELETED + LIVE // 2)
    covered, over, counted = 0, list[str](), dict[str, int]()
    moved = connection.scalar(sa.select(tables.migrations.c.uuid).order_by(tables.migrations.c.id).limit(1))

    def run(name: str, read: Callable[..., Any], *args: Any) -> None:
        nonlocal covered
        reads = Reads(connection, counted)
        with contextlib.suppress(_EnoughStatements):
            read(connection, *args)
        reads.count()
        covered += 1
        if reads.most > bound:
            over.append(f"{name}: {reads.most}\n{reads.statement}")
            assert len(over) < 5, "\n\n".join(over)

    for name, query in server_lists().items():
        for place in (None, marker) if query.project_id is None and not query.deleted else (None,):
            query.marker = place
            run(f"servers, {name}, marker {place}", read_servers, query)
    for name, moves in migration_lists().items():
        for place in (None, moved) if moves.project_id is None else (None,):
            moves.marker = place
            run(f"migrations, {name}, marker {place}", server_migrations.index, moves)
    run("actions", actions.index, million_rows.uuid_of(9), LIMIT, None, MOMENT, MOMENT)
    print(f"{covered} lists on {connection.dialect.name}: none reads more than {bound}")
    assert not over, "\n\n".join(over)
    assert covered > 500


@pytest.mark.parametrize("keys", SEVERAL_KEYS, ids=str)
@pytest.mark.parametrize("deleted", [False, True])
def test_statements_of_a_list_by_several_keys_together_read_few_rows(filled: Database, keys: tuple[tuple[str, str]],
                                                                     deleted: bool) -> None:
    with filled.engine.connect() as connection, connection.begin():
        reads = Reads(connection)
        read_servers(connection, ServerQuery(sort=list(keys), deleted=deleted, limit=LIMIT, brief=True))
        reads.count()
        assert 0 < reads.total < (MOST_OF_A_LIST if filled.dialect == "sqlite" else MOST_ROWS)


@pytest.mark.parametrize("name", sorted({*servers_list.QUERY.fields} - NO_FILTERS - UNLIMITED.keys()))
def test_statements_of_a_list_without_a_match_together_read_few_rows(filled: Database, name: str,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders with and without an index, of all servers and of a project."""
    monkeypatch.setattr(searches, "_SECONDS_EMPTY", 0.0)
    bound = MOST_OF_AN_EMPTY_LIST if filled.dialect == "sqlite" else MOST_ROWS
    filled.read(clock.synchronize)
    with filled.engine.connect() as connection, connection.begin():
        versions.bump(connection, text_index._COUNTER)  # The index has the current texts.
        for sort, project, deleted in (
                ([], None, False), ([], None, True), ([("host", "asc"), ("created_at", "asc")], None, False),
                ([("display_name", "asc"), ("created_at", "desc")], "project-0000007", False)):
            reads = Reads(connection)
            query = ServerQuery(filters={name: NOTHING.get(name, "nothing")}, sort=sort, project_id=project,
                                deleted=deleted, limit=LIMIT, brief=True)
            assert not list(server_search.search(connection, query, partial=True).servers)
            reads.count()
            assert reads.total < bound, (sort, project, deleted, reads.statement)


# Formats of a creation time, and the number of characters to cut from its end.
@pytest.mark.parametrize(("pattern", "cut"), [
    ("%Y-%m", 0), ("^%Y-%m-%d", 1), ("%Y-%m-%d", 0), ("%Y-%m-%dT%H", 1), ("%Y-%m-%d %H", 0), ("%Y-%m-%dT%H:%M", 1),
    ("%Y-%m-%d.%H:..:%S", 1), ("%Y-%m-%d %H:%M:%S", 1), ("%Y-%m-%d|2024-12-09", 0), ("%dT%H:%M", 1), ("Z$", 0),
    ("2024-13", 0), ("2024-02-30", 0), ("%Y-%m-%d or 11", 0)])
def test_filters_by_time_find_what_the_expression_matches(filled: Database, pattern: str, cut: int) -> None:
    """Filters with the begin of a time are read from an index, the others are not."""
    column = tables.instances.c.created_at
    with filled.engine.connect() as connection:
        moments = dict(connection.execute(sa.select(tables.instances.c.uuid, column).where(
            tables.instances.c.deleted == sa.false())).tuples().all())
        begin = f"{sorted(moments.values())[LIVE // 2]:{pattern}}"
        expression = begin[:len(begin) - cut]
        found = [server.uuid for server in server_search.search(
            connection, ServerQuery(filters={"created_at": expression}, brief=True)).servers]
    expected = [uuid for uuid, moment in moments.items() if any(
        re.search(expression, text) for text in (f"{moment:%Y-%m-%dT%H:%M:%SZ}", f"{moment:%Y-%m-%d %H:%M:%S.%f}"))]
    assert sorted(found) == sorted(expected)
    assert found or pattern in ("2024-13", "2024-02-30", "%Y-%m-%d or 11")


def test_pages_of_servers_are_complete_and_in_order(filled: Database) -> None:
    """Every sort key is tested in both directions, with null keys and small windows."""
    with filled.engine.connect() as connection, connection.begin():
        hosts = {"host": [f"host-{number:07d}" for number in (7, 8)], "availability_zone": "zone"}
        for key in servers_list._SORT_KEYS:
            for way in ("asc", "desc"):
                query = ServerQuery(filters=hosts, sort=[(key, way), ("created_at", way)], deleted=None, brief=True)
                everything = [found.uuid for found in server_search.search(connection, query).servers]
                paged: list[str] = []
                query.limit = 17
                while True:
                    page = server_search.search(connection, query, partial=True)
                    uuids = [found.uuid for found in page.servers]
                    paged += uuids
                    query.marker = page.marker or (uuids[-1] if len(uuids) == query.limit else None)
                    if query.marker is None:
                        break
                assert len(everything) == 2 * (LIVE + DELETED) // million_rows.HOSTS
                assert paged == everything, (key, way)


def test_pack_reads_only_the_servers_of_the_next_block(filled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "SIZE", 100)
    bound = MOST_INSTRUCTIONS if filled.dialect == "sqlite" else MOST_ROWS
    filled.read(clock.synchronize)
    with filled.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(sa.update(tables.instances).values(text_block=None))
        for _ in range(150):
            assert text_index.pack(connection)
        reads = Reads(connection)
        text_index.pack(connection)
        reads.count()
        transaction.rollback()
    assert 0 < reads.most < bound, reads.statement


def test_usage_of_a_period_reads_the_rows_of_no_other_servers(filled: Database) -> None:
    """The servers of the period are selected in an index that has its columns."""
    plan = {"sqlite": "COVERING INDEX ix_instances_usage", "mysql": "Using index", "postgresql": "ix_instances_usage"}
    with filled.engine.connect() as connection, connection.begin():
        reads = Reads(connection)
        usages.index(connection, MOMENT, MOMENT + datetime.timedelta(1), LIMIT)
        (statement, parameters), = reads._noted
        explain = "EXPLAIN QUERY PLAN" if filled.dialect == "sqlite" else "EXPLAIN"
        text = str(connection.exec_driver_sql(f"{explain} {statement}", parameters).all())
    assert plan[filled.dialect] in text, text
