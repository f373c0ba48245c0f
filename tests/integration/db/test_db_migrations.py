"""The migrations on PostgreSQL and MariaDB."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from nova.db import tables
from nova.db.maintenance import migrate
from nova.db.sql.engine import Database
from nova.objects.base import utcnow
from tests.integration.databases import Server
from tests.unit.conductor.database.test_migrations import *  # noqa: F403


@pytest.fixture(params=["postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).new_database())


def test_indexes_of_a_large_table_are_created_concurrently(postgresql: Server) -> None:
    """Indexes are created after the upgrade and without table locks; an invalid index is created again."""
    url = postgresql.new_database()
    migrate.sync(url, "0025")
    database, noted = Database(url), list[str]()
    with database.engine.connect() as connection, connection.begin():
        for index in tables.instances.indexes:
            connection.exec_driver_sql(f"DROP INDEX {index.name}")
    table = sa.table("instances", *(sa.column(column.name, column.type) for column in tables.instances.c
                                    if column.name != "id"))
    row = {column.name: column.type.python_type() if isinstance(column.type, sa.String | sa.Integer | sa.Boolean)
           else None for column in tables.instances.c if not column.nullable and column.name != "id"}
    row |= {name: {} for name in ("flavor", "metadata", "system_metadata", "scheduler_hints")}
    row |= {name: [] for name in ("tags", "security_groups", "network_info", "block_devices", "personality")}
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.insert(table).values(row | {"uuid": "one", "created_at": utcnow()}))
        connection.exec_driver_sql("CREATE INDEX ix_instances_by_host ON instances (deleted, host, created_at, uuid)")
        connection.exec_driver_sql("UPDATE pg_index SET indisvalid = false "
                                   "WHERE indexrelid = 'ix_instances_by_host'::regclass")

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        noted.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        migrate.sync(url)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    made = [statement for statement in noted if "INDEX" in statement and "instances" in statement]
    assert len([statement for statement in made if "CREATE INDEX CONCURRENTLY" in statement]) >= 28
    assert not [statement for statement in made if "CONCURRENTLY" not in statement]
    assert database.read(migrate.differences) == []
    assert not database.read(lambda connection: connection.scalars(sa.text(
        "SELECT indexrelid::regclass FROM pg_index WHERE NOT indisvalid")).all())
    database.close()
